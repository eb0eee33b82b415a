#include <algorithm>
#include <chrono>

#include "kernels/backend.h"

namespace trainctl::kernels {

double measure_matmul_flops_per_s(Backend& backend, DType dtype) {
  constexpr int64_t kSize = 1024;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  // Rows one page apart would meet in the same few cache sets: that is not the machine's peak.
  constexpr int64_t kStride = kSize + 32;
  constexpr auto kBudget = std::chrono::milliseconds(200);
  using Clock = std::chrono::steady_clock;

  const auto stream = backend.create_stream();
  const size_t bytes = kSize * kStride * size_of(dtype);
  const auto x = backend.allocate(bytes), w = backend.allocate(bytes), y = backend.allocate(bytes);
  const auto view = [&](Buffer& b) { return Matrix{b.data(), dtype, kSize, kSize, kStride}; };
  const auto packed = backend.make_packed(kSize, kSize, dtype);
  backend.pack(*stream, view(*w), *packed);
  const auto once = [&] {
    backend.linear_forward(*stream, view(*x), *packed, {}, view(*y));
    stream->synchronize();
  };
  once();  // what is built on the first call with a shape is not the machine's speed
  double best_s = 1e30;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    once();
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() - begin < kBudget);
  return kFlops / best_s;
}

}  // namespace trainctl::kernels
