// Goal: lanes of which a rank computes several parts at one time (context blocks) are reduced as if each part
// came from a rank of its own: the sums have the bits of the tree over all parts, whatever the number of
// ranks. Method: gradients by values of their own on rank threads, over ZeRO stages, ways of reduction and
// one or two micro-batches a lane; the tree is written down again, the place of a part against the gradient
// of its lane, and the memory taken against the plan.
#include <catch2/catch.hpp>

#include "parallel/lanes.h"
#include "parallel/sharded_params.h"
#include "parallel/sharding_plan.h"
#include "runtime/base/error.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"

namespace trainctl::test {
namespace {

using namespace parallel;

constexpr int kAllParts = 8;  ///< parts of all lanes of a step, each of which counts as a lane

float gradient_of_part(int part, int micro_batch, int use, int64_t element) {
  return input_value(part * 4 + micro_batch, use * 1000 + element);
}

struct PartsCase {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  ShardingOptions options;
  int micro_batches = 1;

  void add(int64_t rows, int64_t cols, DType dtype) {
    ParamUse use;
    use.param = use.part = int(uses.size());
    use.layout = {.name = std::to_string(use.param), .rows = rows, .cols = cols};
    use.dtype = dtype;
    grids.push_back(chunk_grid(use.layout, {1}, 12));
    uses.push_back(std::move(use));
  }
  float sum(int use, int64_t element) const {
    const bool in_bf16 = options.reduction_dtype == DType::bf16;
    std::vector<float> values;
    for (int part = 0; part < kAllParts; ++part) {
      values.push_back(gradient_of_part(part, 0, use, element));
      for (int m = 1; m < micro_batches; ++m) values.back() += gradient_of_part(part, m, use, element);
    }
    for (; values.size() > 1; values.resize(values.size() / 2)) {
      if (in_bf16)
        for (float& value : values) value = float(bf16(value));
      for (size_t i = 0; i < values.size() / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    }
    return values[0];
  }
};

/// The lane of this time, in which every rank has `options.parts_of_lane` parts.
void add_parts_of_time(ShardedParams& params, Communicator& world, const PartsCase& c, int time) {
  const int here = c.options.parts_of_lane;
  const int first_part = (time * world.size() + world.rank()) * here, first_lane = time * here;
  for (int m = 0; m < c.micro_batches; ++m)
    for (int use = params.use_count() - 1; use >= 0; --use) {
      if (m == 0) params.claim_gradients(use, use + 1);
      for (int part = 0; part < here; ++part) {
        const kernels::Matrix g = params.gradient(use, first_lane + part);
        char* const place = static_cast<char*>(params.gradient(use, first_lane).data);
        require(params.gradient_of_part(place, part) == g.data, "use {}: part {} is elsewhere", use, part);
        require(params.gradient_of_part(place + 4, part) == g.as<char>() + 4, "use {}: inside", use);
        for (int64_t i = 0; i < g.count(); ++i) {
          const float value = gradient_of_part(first_part + part, m, use, i);
          g.as<float>()[i] = m == 0 ? value : g.as<float>()[i] + value;
        }
      }
      if (m + 1 < c.micro_batches) continue;
      for (int part = 0; part < here; ++part) params.merge_lane(use, use + 1, first_lane + part);
      params.reduce(use, use + 1);
    }
}

void run_parts(Communicator& world, const PartsCase& c) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  const auto alone = make_thread_world(1, 60);
  const AxisGroups groups(world, *alone[0], nullptr);
  ShardedParams params(c.uses, c.grids, c.options, groups, *backend, *stream);
  const size_t planned = ShardedParams::plan(c.uses, c.grids, c.options, groups.lines()).total();
  require(backend->allocated_bytes() == planned, "{} bytes taken, {} planned", backend->allocated_bytes(),
          planned);
  float outside = 0;
  require(!params.gradient_of_part(&outside, 0), "a number of another is taken for a gradient");
  const int times = kAllParts / (world.size() * c.options.parts_of_lane);
  for (int step = 0; step < 2; ++step) {
    for (int time = 0; time < times; ++time) add_parts_of_time(params, world, c, time);
    params.finish_reduction();
    for (const ShardedParams::StateChunk& chunk : params.state_chunks())
      for (int64_t i = 0; i < chunk.box.count(); ++i) {
        const int64_t row = i / chunk.box.cols(), col = i % chunk.box.cols();
        const int64_t cols = c.uses[size_t(chunk.param)].layout.cols;
        const int64_t element = (chunk.box.row_begin + row) * cols + chunk.box.col_begin + col;
        require_same_bits(chunk.gradient[row * chunk.gradient_stride + col], c.sum(chunk.param, element),
                          fmt::format("use {}", chunk.param), element);
      }
  }
}

}  // namespace

TEST_CASE("parts of lanes are added as lanes of as many ranks", "[lanes]") {
  for (const auto& [ranks, parts] : {std::pair{1, 2}, {1, 4}, {1, 8}, {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}})
    for (const int zero : {0, 1, 2, 3})
      for (const bool accumulates : {false, true})
        for (const DType dtype : {DType::f32, DType::bf16}) {
          CAPTURE(ranks, parts, zero, accumulates, name_of(dtype));
          PartsCase c;
          c.add(8, 6, DType::f32);
          c.add(7, 6, DType::bf16);
          c.add(5, 1, DType::f32);
          c.micro_batches = accumulates ? 2 : 1;
          c.options = {.zero_stage = zero,
                       .shares_gradients = !accumulates && zero > 0,
                       .lanes = kAllParts,
                       .accumulates = accumulates,
                       .parts_of_lane = parts,
                       .has_parts = true,
                       .bucket_elements = dtype == DType::f32 ? 20 : 100000,
                       .reduction_dtype = dtype};
          CHECK_NOTHROW(on_rank_threads(ranks, kLongS, [&](Communicator& world) { run_parts(world, c); }));
        }
}

}  // namespace trainctl::test
