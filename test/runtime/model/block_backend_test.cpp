// Goal: on a rank with several context blocks, an op that adds over rows or multiplies them has the bits of
// one run for each block, and its gradients are those of each block's lane; ops that compute each row apart
// run once. Method: each such op on the CPU with random operands, through the BlockBackend and by hand block
// by block; the outputs and the gradients of all blocks are compared bit for bit. The table of positions has
// as many rows as a micro-batch, which must not be taken for rows.
#include "runtime/model/block_backend.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "kernels/tally.h"
#include "parallel/communicator.h"

namespace trainctl::block_backend {

using namespace kernels;

namespace {

constexpr int64_t kRows = 12, kIn = 16, kOut = 32, kHeads = 2;
constexpr int kBlocks = 2;
constexpr int64_t kBlockRows = kRows / kBlocks;

enum Use { kDw, kDBias, kTable, kDNorm, kDGroup, kDSinks, kUses };
constexpr std::pair<int64_t, int64_t> kSizes[kUses] = {{kOut, kIn}, {1, kOut},    {kRows, kIn},
                                                       {1, kIn},    {1, kIn / 2}, {1, kHeads}};

parallel::ParamUse use_of(int i) {
  parallel::ParamUse use;
  use.param = use.part = i;
  use.layout = {.name = std::to_string(i), .rows = kSizes[i].first, .cols = kSizes[i].second};
  return use;
}
std::vector<parallel::ParamUse> all_uses() {
  std::vector<parallel::ParamUse> uses;
  for (int i = 0; i < kUses; ++i) uses.push_back(use_of(i));
  return uses;
}
std::vector<std::vector<parallel::Box>> all_grids() {
  std::vector<std::vector<parallel::Box>> grids;
  for (int i = 0; i < kUses; ++i) grids.push_back(parallel::chunk_grid(use_of(i).layout, {1}, 1000));
  return grids;
}

struct Rig {
  std::unique_ptr<Backend> device = make_cpu_backend(1);
  std::unique_ptr<Stream> stream = device->create_stream();
  std::vector<std::unique_ptr<parallel::Communicator>> alone = parallel::make_thread_world(1, 10);
  parallel::ShardedParams params{all_uses(),
                                 all_grids(),
                                 {.lanes = kBlocks, .parts_of_lane = kBlocks, .has_parts = true},
                                 {*alone[0], *alone[0], nullptr},
                                 *device,
                                 *stream};
  std::unique_ptr<Backend> blocks = make_block_backend(*device, params, kRows, kBlocks);
  std::mt19937 random{3};
  std::vector<std::unique_ptr<Buffer>> memory;

  Matrix fresh(int64_t rows, int64_t cols, DType dtype = DType::f32) {
    memory.push_back(device->allocate(size_t(rows * cols) * size_of(dtype)));
    const Matrix m = matrix(memory.back()->data(), dtype, rows, cols);
    fill(m);
    return m;
  }
  void fill(const Matrix& m) {
    std::normal_distribution<float> draw;
    for (int64_t i = 0; i < m.count(); ++i)
      m.dtype == DType::f32 ? void(m.as<float>()[i] = draw(random))
                            : void(m.as<bf16>()[i] = bf16(draw(random)));
  }
  Matrix copy(const Matrix& m) {
    const Matrix other = fresh(m.rows, m.cols, m.dtype);
    std::memcpy(other.data, m.data, size_t(m.count()) * size_of(m.dtype));
    return other;
  }
};

bool same_content(const Matrix& a, const Matrix& b) {
  return std::memcmp(a.data, b.data, size_t(a.count()) * size_of(a.dtype)) == 0;
}

/// The operands as an op of all blocks, or of one, has them.
struct View {
  int block = -1;  ///< -1: all
  std::vector<Matrix> outputs;
  std::vector<std::vector<Matrix>> gradients;  ///< [block][use]

  Matrix rows(const Matrix& m) const { return block < 0 ? m : m.row_range(block * kBlockRows, kBlockRows); }
  Matrix out(size_t i) const { return rows(outputs[i]); }
  Matrix gradient(int use) const { return gradients[size_t(block < 0 ? 0 : block)][size_t(use)]; }
  template <typename T>
  T* array(const Matrix& m) const {
    return rows(m).template as<T>();
  }
};

/// op_of(view): the op. Its outputs are of these sizes and dtypes.
template <typename OpOf>
void check_op(Rig& rig, const std::vector<std::pair<int64_t, DType>>& outputs, OpOf op_of) {
  View together, apart;
  for (int block = 0; block < kBlocks; ++block) {
    together.gradients.emplace_back();
    apart.gradients.emplace_back();
    for (int use = 0; use < kUses; ++use) {
      together.gradients.back().push_back(rig.params.gradient(use, block));
      rig.fill(together.gradients.back().back());
      apart.gradients.back().push_back(rig.copy(together.gradients.back().back()));
    }
  }
  for (const auto& [cols, dtype] : outputs) {
    together.outputs.push_back(rig.fresh(kRows, cols, dtype));
    apart.outputs.push_back(rig.copy(together.outputs.back()));
  }
  rig.blocks->run(*rig.stream, op_of(together));
  for (apart.block = 0; apart.block < kBlocks; ++apart.block) rig.device->run(*rig.stream, op_of(apart));
  rig.stream->synchronize();
  for (size_t i = 0; i < outputs.size(); ++i) CHECK(same_content(together.outputs[i], apart.outputs[i]));
  for (int block = 0; block < kBlocks; ++block)
    for (int use = 0; use < kUses; ++use) {
      CAPTURE(block, use);
      CHECK(same_content(together.gradients[size_t(block)][size_t(use)],
                         apart.gradients[size_t(block)][size_t(use)]));
    }
}

}  // namespace

TEST_CASE("products run block by block, each block's weight gradient into its lane", "[context]") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(name_of(dtype));
    Rig rig;
    const auto packed = rig.device->make_packed(kOut, kIn, dtype);
    rig.device->run(*rig.stream, Pack{.w = rig.fresh(kOut, kIn, dtype), .packed = packed.get()});
    const Matrix x = rig.fresh(kRows, kIn, dtype), dy = rig.fresh(kRows, kOut, dtype),
                 bias = rig.fresh(1, kOut), pre = rig.fresh(kRows, kIn, dtype);
    check_op(rig, {{kOut, dtype}}, [&](const View& v) -> Op {
      return LinearForward{.x = v.rows(x), .w = packed.get(), .bias = bias, .y = v.out(0)};
    });
    check_op(rig, {{kIn, dtype}}, [&](const View& v) -> Op {
      return LinearBackwardInput{.dy = v.rows(dy), .w = packed.get(), .dx = v.out(0)};
    });
    check_op(rig, {{kOut, dtype}, {kOut, dtype}}, [&](const View& v) -> Op {
      return LinearGeluForward{
          .x = v.rows(x), .w = packed.get(), .bias = bias, .pre = v.out(0), .y = v.out(1)};
    });
    check_op(rig, {{kIn, dtype}}, [&](const View& v) -> Op {
      return LinearGeluBackwardInput{.dy = v.rows(dy), .w = packed.get(), .pre = v.rows(pre), .dx = v.out(0)};
    });
    for (const bool accumulate : {false, true})
      check_op(rig, {}, [&](const View& v) -> Op {
        return LinearBackwardWeight{.dy = v.rows(dy),
                                    .x = v.rows(x),
                                    .dw = v.gradient(kDw),
                                    .dbias = v.gradient(kDBias),
                                    .accumulate = accumulate};
      });
    // Part of a gradient: the rows of a joined weight.
    check_op(rig, {}, [&](const View& v) -> Op {
      return LinearBackwardWeight{
          .dy = v.rows(dy).columns(0, 8), .x = v.rows(x), .dw = v.gradient(kDw).row_range(24, 8)};
    });
  }
}

TEST_CASE("sums over rows are made block by block", "[context]") {
  Rig rig;
  const Matrix x = rig.fresh(kRows, kIn), dy = rig.fresh(kRows, kIn), weight = rig.fresh(1, kIn),
               of_group = rig.fresh(1, kIn / 2), stats = rig.fresh(kRows, 2), sums = rig.fresh(kRows, 2),
               dots = rig.fresh(kRows, 2), sinks = rig.fresh(1, kHeads), lse = rig.fresh(kRows, kHeads);
  for (int64_t i = 0; i < sums.count(); ++i) sums.as<float>()[i] = 1 + std::abs(sums.as<float>()[i]);
  std::vector<int32_t> ids, positions;
  for (int32_t i = 0; i < kRows; ++i) ids.push_back(i * 5 % 7), positions.push_back(i * 7 % kRows);
  const Matrix of_ids = matrix(ids.data(), DType::i32, kRows, 1),
               of_positions = matrix(positions.data(), DType::i32, kRows, 1);
  for (const bool accumulate : {false, true}) {
    check_op(rig, {{kIn, DType::f32}}, [&](const View& v) -> Op {
      return NormBackward{.dy = v.rows(dy),
                          .x = v.rows(x),
                          .weight = weight,
                          .stats = v.array<float>(stats),
                          .dx = v.out(0),
                          .dweight = v.gradient(kDNorm),
                          .accumulate = accumulate};
    });
    check_op(rig, {{kIn, DType::f32}}, [&](const View& v) -> Op {
      return GroupNormBackward{.dy = v.rows(dy),
                               .x = v.rows(x),
                               .group = kIn / 2,
                               .count = kIn / 2,
                               .sums = v.array<float>(sums),
                               .dots = v.array<float>(dots),
                               .weight = of_group,
                               .eps = 1e-5f,
                               .dx = v.out(0),
                               .dweight = v.gradient(kDGroup),
                               .accumulate = accumulate};
    });
    check_op(rig, {}, [&](const View& v) -> Op {
      return HeadScalarBackward{.rows = {.out = v.rows(x), .dout = v.rows(dy)},
                                .lse = v.array<float>(lse),
                                .values = sinks,
                                .dvalues = v.gradient(kDSinks),
                                .head_dim = kIn / kHeads,
                                .accumulate = accumulate};
    });
  }
  check_op(rig, {}, [&](const View& v) -> Op {
    return EmbeddingBackward{
        .ids = v.array<int32_t>(of_ids), .dout = v.rows(dy), .dtable = v.gradient(kTable)};
  });
  check_op(rig, {}, [&](const View& v) -> Op {
    return AddPositionBackward{.dx = v.rows(dy),
                               .seq_len = kRows,
                               .dtable = v.gradient(kTable),
                               .positions = v.array<int32_t>(of_positions)};
  });
  double together[kBlocks] = {}, apart[kBlocks] = {};
  const Matrix losses = rig.fresh(kRows, 1);
  rig.blocks->run(*rig.stream, Sum{.x = losses.as<float>(), .n = kRows, .out = together});
  for (int block = 0; block < kBlocks; ++block)
    rig.device->run(*rig.stream,
                    Sum{.x = losses.as<float>() + block * kBlockRows, .n = kBlockRows, .out = &apart[block]});
  rig.stream->synchronize();
  for (int block = 0; block < kBlocks; ++block) CHECK(together[block] == apart[block]);
  CHECK(together[0] != together[1]);
}

TEST_CASE("ops that compute each row apart, and those of other rows, run once", "[context]") {
  WorkTally tally;
  Rig rig;
  const auto counted = make_counting_backend(make_cpu_backend(1), tally);
  const auto blocks = make_block_backend(*counted, rig.params, kRows, kBlocks);
  const Matrix x = rig.fresh(kRows, kIn), y = rig.fresh(kRows, kIn), few = rig.fresh(4, kIn);
  blocks->run(*rig.stream, Copy{.src = x, .dst = y});
  blocks->run(*rig.stream, Add{.src = x, .dst = y});
  blocks->run(*rig.stream, GatedForward{.gate = x, .up = x, .y = y});
  blocks->run(*rig.stream, Copy{.src = few, .dst = y.row_range(0, 4)});
  rig.stream->synchronize();
  for (const auto& [shape, count] : tally.ops) {
    CAPTURE(shape.op, shape.m);
    CHECK(count.calls == 1);
    CHECK((shape.m == kRows || (shape.m == 4 && shape.op == Copy::kName)));
  }
  CHECK(tally.ops.size() == 4);
  tally.ops.clear();
  const auto packed = counted->make_packed(kOut, kIn, DType::f32);
  counted->run(*rig.stream, Pack{.w = rig.fresh(kOut, kIn), .packed = packed.get()});
  tally.ops.clear();
  blocks->run(*rig.stream, LinearForward{.x = x, .w = packed.get(), .y = rig.fresh(kRows, kOut)});
  rig.stream->synchronize();
  REQUIRE(tally.ops.size() == 1);
  CHECK(tally.ops.begin()->first.m == kBlockRows);
  CHECK(tally.ops.begin()->second.calls == uint64_t(kBlocks));
}

TEST_CASE("what FP8 products see of rows has scales of each block alone, but of experts' rows",
          "[context][fp8]") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(name_of(dtype));
    Rig rig;
    const Matrix x = rig.fresh(kRows, kIn, dtype);
    for (int64_t i = 0; i < kIn; ++i)  // of the last block: beside it, others would vanish
      dtype == DType::f32 ? void(x.as<float>()[x.count() - 1 - i] = 0x1p40f)
                          : void(x.as<bf16>()[x.count() - 1 - i] = bf16(0x1p40f));
    for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns, Fp8Groups::whole})
      check_op(rig, {{kIn, dtype}}, [&](const View& v) -> Op {
        return Quantize{.x = v.rows(x), .y = v.out(0), .groups = groups};
      });
    int32_t ends[] = {0, 1, int32_t(kRows)};
    const Matrix offsets = matrix(ends, DType::i32, 1, 3);
    const Matrix cut = rig.fresh(kRows, kIn, dtype), whole = rig.fresh(kRows, kIn, dtype);
    for (const auto& [device, y] : {std::pair{rig.blocks.get(), cut}, {rig.device.get(), whole}})
      device->run(*rig.stream, Quantize{.x = x, .y = y, .groups = Fp8Groups::columns, .offsets = offsets});
    CHECK(same_content(cut, whole));
  }
}

}  // namespace trainctl::block_backend
