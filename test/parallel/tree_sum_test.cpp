// Goal: a sum over more inputs than one op takes has the bits of the one tree over all of them.
// Method: the reference backend sums any number at once; the same inputs in blocks of 2, 4, 8 and 2048, every count up to 40 and a few
// around the limits, seeded values whose sums round.
#include <catch2/catch.hpp>
#include <cstring>

#include "parallel/tree_sum.h"
#include "runtime/base/philox.h"

using namespace trainctl;

namespace {

constexpr int64_t kCount = 5;

/// Inputs [n][kCount] of very different sizes.
std::vector<std::vector<float>> make_inputs(size_t n) {
  const Philox random(11, RandomPurpose::kTest);
  std::vector<std::vector<float>> inputs(n, std::vector<float>(kCount));
  for (size_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < kCount; ++k)
      inputs[i][size_t(k)] = float(int64_t(random.bits64(i * kCount + size_t(k)) % 2000003) - 1000001) * (i % 3 ? 1e-3f : 1.0f);
  return inputs;
}

/// The sum in blocks, into input `into`, or into memory of its own.
std::vector<float> in_blocks(size_t n, size_t at_once, ptrdiff_t into) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  auto inputs = make_inputs(n);
  std::vector<float> own(kCount);
  std::vector<float*> pointers;
  for (auto& input : inputs) pointers.push_back(input.data());
  float* out = into < 0 ? own.data() : inputs[size_t(into)].data();
  parallel::tree_sum_of_any(*backend, *stream, pointers, out, kCount, at_once);
  return {out, out + kCount};
}

std::vector<float> at_once(size_t n) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  const auto inputs = make_inputs(n);
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<float> out(kCount);
  backend->tree_sum(*stream, pointers, out.data(), DType::f32, kCount);
  return out;
}

}  // namespace

TEST_CASE("a tree sum in blocks has the bits of one tree", "[tree_sum]") {
  for (size_t n = 1; n <= 40; ++n) {
    const std::vector<float> expected = at_once(n);
    for (const size_t block : {2, 4, 8})
      for (const ptrdiff_t into : {ptrdiff_t(-1), ptrdiff_t(0), ptrdiff_t(n / 2), ptrdiff_t(n - 1)}) {
        CAPTURE(n, block, into);
        CHECK(in_blocks(n, block, into) == expected);
      }
  }
  for (const size_t n : {2047, 2048, 2049, 4096, 5000}) {
    CAPTURE(n);
    CHECK(in_blocks(n, kernels::kTreeSumInputs, 3) == at_once(n));
  }
}
