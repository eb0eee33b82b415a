// Goal: weights without master weights are the compute copies: no memory of their own, each chunk with the
// index that it has in the whole parameter, averages and digests of them as of master weights, and of chunks
// of columns the rows that lie apart. Method: parameters cut over tensor ranks and chunks, on every rank of
// layouts with and without ZeRO; each element holds a number of its own.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "parallel/sharded_memory.h"
#include "runtime/base/hash.h"

using namespace trainctl;
using namespace trainctl::parallel;
using namespace trainctl::parallel::sharding;

namespace {

constexpr int64_t kSide = 24;

struct InPlaceUses {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
};

InPlaceUses uses_in_place() {
  InPlaceUses all;
  const auto add = [&](const char* name, int64_t rows, int64_t cols, Cut cut, bool matrix) {
    ParamUse use;
    use.param = use.part = int(all.uses.size());
    use.layout = {.name = name, .rows = rows, .cols = cols, .cut = cut};
    if (cut == Cut::none) use.replicated |= axes::tensor;
    use.dtype = matrix ? DType::bf16 : DType::f32;
    use.states = rows_of(
        use.rule,
        {.averages = true, .weights = matrix ? UpdatedWeights::bf16_copies : UpdatedWeights::f32_copies});
    use.rounding = xxh3(use.layout.name, 7);
    all.grids.push_back(chunk_grid(use.layout, {1, 2, 4}, 40));
    all.uses.push_back(use);
  };
  add("rows", kSide, kSide, Cut::rows, true);
  add("columns", kSide, kSide, Cut::cols, true);
  add("whole", kSide, 8, Cut::none, true);
  add("norm", kSide, 1, Cut::none, false);
  return all;
}

/// Of an element of a parameter; bf16 holds it.
float number_of(int param, int64_t row, int64_t col) { return float((param * 64 + row * 5 + col * 3) % 251); }

void check_rank(const InPlaceUses& all, int zero, const AxisLine& data, const AxisLine& tensor) {
  const auto backend = kernels::make_cpu_backend(1);
  const auto stream = backend->create_stream();
  const ShardedMemory memory(
      make_layout(all.uses, all.grids, {.zero_stage = zero, .lanes = 4}, {data, tensor}), *backend, nullptr);
  int apart = 0;
  for (size_t i = 0; i < memory.state_chunks().size(); ++i) {
    const ShardedParams::StateChunk& c = memory.state_chunks()[i];
    const kernels::UpdateBox& box = memory.update_boxes()[i];
    const int64_t cols = all.uses[size_t(c.param)].layout.cols;
    CHECK(box.master == nullptr);
    CHECK(box.rounding == all.uses[size_t(c.param)].rounding);
    CHECK(box.first == c.box.row_begin * cols + c.box.col_begin);
    CHECK(box.row_step == cols);
    CHECK_FALSE(c.has_masters());
    CHECK(c.values(0).data == c.weight.data);
    CHECK(bool(memory.rows_apart(c.states[0])) == !c.weight.contiguous());
    apart += !c.weight.contiguous();
    for (int64_t r = 0; r < c.box.rows(); ++r)
      for (int64_t col = 0; col < c.box.cols(); ++col) {
        const float x = number_of(c.param, c.box.row_begin + r, c.box.col_begin + col);
        if (c.weight.dtype == DType::bf16)
          c.weight.as<bf16>()[r * c.weight.stride + col] = bf16(x);
        else
          c.weight.as<float>()[r * c.weight.stride + col] = x;
      }
  }
  // With ZeRO-3 owners have chunks one behind the other; else those of columns lie apart where a rank has
  // several.
  CHECK((apart > 0) == (zero < 3 && tensor.size < 4));
  memory.average(0, *backend, *stream);
  memory.average(0.75f, *backend, *stream);
  stream->synchronize();
  for (const ShardedParams::StateChunk& c : memory.state_chunks())
    for (int64_t i = 0; i < c.box.count(); ++i)
      CHECK(c.floats(StateRole::ema)[i] ==
            number_of(c.param, c.box.row_begin + i / c.box.cols(), c.box.col_begin + i % c.box.cols()));
  for (int g = 0; g < memory.groups(); ++g)
    for (size_t row = 0; row < memory.group(g).key.states.size(); ++row)
      if (memory.group(g).key.states[row].in_place) CHECK(memory.layout.group_bytes(g).states[row] == 0);
}

}  // namespace

TEST_CASE("weights without master weights lie in the compute copies, with their places in the parameter") {
  const InPlaceUses all = uses_in_place();
  for (const int zero : {0, 1, 3})
    for (const int tensor : {1, 2, 4})
      for (int rank = 0; rank < tensor; ++rank)
        for (const int data : {0, 1}) {
          CAPTURE(zero, tensor, rank, data);
          check_rank(all, zero, {axes::data, 2, data, true}, {axes::tensor, tensor, rank});
        }
}
