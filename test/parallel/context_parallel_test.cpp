// Goal: keys and values of all ranks come together in the order of tokens, and their gradients are added over
// blocks by the tree, whatever the number of ranks. Method: values by token and block on rank threads; sums
// against the tree written down again, each node rounded to the dtype.
#include "parallel/context_parallel.h"

#include <catch2/catch.hpp>

#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"

namespace trainctl::test {
namespace {

using namespace parallel;
using kernels::Matrix;

constexpr int64_t kCutCols = 3, kCutSequences = 2;

/// A matrix of its own memory.
struct OwnMatrix {
  OwnMatrix(kernels::Backend& backend, DType dtype, int64_t rows, int64_t cols)
      : memory(backend.allocate(size_t(rows * cols) * size_of(dtype))),
        m(kernels::matrix(memory->data(), dtype, rows, cols)) {}
  float get(int64_t i) const { return m.dtype == DType::f32 ? m.as<float>()[i] : float(m.as<bf16>()[i]); }
  void set(int64_t i, float value) {
    m.dtype == DType::f32 ? void(m.as<float>()[i] = value) : void(m.as<bf16>()[i] = bf16(value));
  }
  std::unique_ptr<kernels::Buffer> memory;
  Matrix m;
};

float of_token(int64_t token, int64_t col) { return float(token * kCutCols + col); }
float of_block(int block, int64_t token, int64_t col) { return input_value(block, token * kCutCols + col); }
float rounded(float value, DType dtype) { return dtype == DType::f32 ? value : float(bf16(value)); }

float tree_over_blocks(int blocks, int64_t token, int64_t col, DType dtype) {
  std::vector<float> values;
  for (int block = 0; block < blocks; ++block) values.push_back(rounded(of_block(block, token, col), dtype));
  for (; values.size() > 1; values.resize(values.size() / 2))
    for (size_t i = 0; i < values.size() / 2; ++i)
      values[i] = rounded(values[2 * i] + values[2 * i + 1], dtype);
  return values[0];
}

void check_cut(Communicator& world, int blocks, DType dtype) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  const SequenceCut cut{.blocks = blocks,
                        .ranks = world.size(),
                        .rank = world.rank(),
                        .sequences = kCutSequences,
                        .seq_len = int64_t{4} * blocks};
  const ContextParallel cp(cut, world.size() > 1 ? &world : nullptr, *backend, *stream);
  require(backend->allocated_bytes() == context_index_bytes(cut), "{} bytes taken, {} planned",
          backend->allocated_bytes(), context_index_bytes(cut));
  const std::vector<int32_t> tokens = cut.tokens_of(cut.rank);
  const int64_t all_rows = kCutSequences * cut.seq_len;
  OwnMatrix own(*backend, dtype, cut.rows(), kCutCols), room(*backend, dtype, all_rows, kCutCols),
      all(*backend, dtype, all_rows, kCutCols),
      gradients(*backend, dtype, all_rows * cut.blocks_here(), kCutCols);
  for (int64_t i = 0; i < own.m.count(); ++i)
    own.set(i, of_token(tokens[size_t(i / kCutCols)], i % kCutCols));
  cp.gather(own.m, room.m, all.m);
  stream->synchronize();
  for (int64_t i = 0; i < all.m.count(); ++i)
    require(all.get(i) == of_token(i / kCutCols, i % kCutCols), "element {}: {}", i, all.get(i));

  for (int block = 0; block < cut.blocks_here(); ++block)
    for (int64_t i = 0; i < all.m.count(); ++i)
      gradients.set(block * all.m.count() + i,
                    of_block(cut.rank * cut.blocks_here() + block, i / kCutCols, i % kCutCols));
  cp.add(gradients.m, room.m, own.m);
  stream->synchronize();
  for (int64_t i = 0; i < own.m.count(); ++i)
    require_same_bits(own.get(i), tree_over_blocks(blocks, tokens[size_t(i / kCutCols)], i % kCutCols, dtype),
                      "sum over blocks", i);
}

}  // namespace

TEST_CASE("keys come in the order of tokens, and their gradients as the tree over blocks", "[cut]") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (int blocks = 2; blocks <= 8; blocks *= 2)
      for (int ranks = 1; ranks <= blocks; ranks *= 2) {
        CAPTURE(name_of(dtype), blocks, ranks);
        CHECK_NOTHROW(
            on_rank_threads(ranks, 60, [&](Communicator& world) { check_cut(world, blocks, dtype); }));
      }
}

}  // namespace trainctl::test
