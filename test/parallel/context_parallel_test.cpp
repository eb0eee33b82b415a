// Goal: keys and values of all ranks come together in the order of tokens, and their gradients are added over
// blocks by the tree, whatever the number of ranks; tokens go for heads and come back. Method: values by
// token and block on rank threads; sums against the tree written down again, each node rounded to the dtype.
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

/// Two matrices of heads of two channels, of which each rank has two and one; a number of each row.
void check_heads(Communicator& world) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  const int ranks = world.size();
  const SequenceCut cut{
      .blocks = 4, .ranks = ranks, .rank = world.rank(), .sequences = kCutSequences, .seq_len = 16};
  const ContextParallel cp(cut, &world, *backend, *stream);
  const int64_t all_rows = kCutSequences * cut.seq_len, wide = int64_t{4} * ranks,
                narrow = int64_t{2} * ranks;
  OwnMatrix a(*backend, DType::f32, cut.rows(), wide), b(*backend, DType::f32, cut.rows(), narrow),
      heads(*backend, DType::f32, all_rows, 6), room(*backend, DType::f32, all_rows, 6);
  const std::vector<int32_t> tokens = cut.tokens_of(cut.rank), in_order = cut.of_one_rank().tokens_of(0);
  const auto value = [](int64_t token, int64_t col, int which) {
    return float(token * 100 + col + which * 50);
  };
  for (int64_t i = 0; i < a.m.count(); ++i) a.set(i, value(tokens[size_t(i / wide)], i % wide, 0));
  for (int64_t i = 0; i < b.m.count(); ++i) b.set(i, value(tokens[size_t(i / narrow)], i % narrow, 1));
  std::vector<int32_t> numbers(static_cast<size_t>(all_rows));
  const HeadExchange exchange{{a.m, b.m}, heads.m, room.m};
  cp.to_heads(std::span(&exchange, 1), tokens.data(), numbers.data());
  require(numbers == in_order, "the numbers of rows");
  for (int64_t i = 0; i < heads.m.count(); ++i) {
    const int64_t token = in_order[size_t(i / 6)], col = i % 6;
    const float wanted =
        col < 4 ? value(token, cut.rank * 4 + col, 0) : value(token, cut.rank * 2 + col - 4, 1);
    require(heads.get(i) == wanted, "element {}: {}", i, heads.get(i));
    heads.set(i, -wanted);
  }
  cp.to_rows(std::span(&exchange, 1));
  stream->synchronize();
  for (int64_t i = 0; i < a.m.count(); ++i)
    require(a.get(i) == -value(tokens[size_t(i / wide)], i % wide, 0), "element {}: {}", i, a.get(i));
  for (int64_t i = 0; i < b.m.count(); ++i)
    require(b.get(i) == -value(tokens[size_t(i / narrow)], i % narrow, 1), "element {}: {}", i, b.get(i));
}

}  // namespace

TEST_CASE("tokens of all heads go for all tokens of some heads, and come back", "[cut]") {
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    CHECK_NOTHROW(on_rank_threads(ranks, kLongS, check_heads));
  }
}

TEST_CASE("keys come in the order of tokens, and their gradients as the tree over blocks", "[cut]") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (int blocks = 2; blocks <= 8; blocks *= 2)
      for (int ranks = 1; ranks <= blocks; ranks *= 2) {
        CAPTURE(name_of(dtype), blocks, ranks);
        CHECK_NOTHROW(
            on_rank_threads(ranks, kLongS, [&](Communicator& world) { check_cut(world, blocks, dtype); }));
      }
}

}  // namespace trainctl::test
