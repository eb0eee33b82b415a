// Goal: how a parameter is reduced, sharded and gathered follows from its key alone, so that an axis that no
// code knows works like the others: one that shares a sequence (context parallelism), whose ranks have the
// same lanes and whose sums are added, and one that divides the data-parallel ranks (expert parallelism),
// along which fewer ranks share a parameter and each has more lanes. Method: both axes made up here, on rank
// threads, each lane at the time at which its rank computes it; the sums against the tree over all lanes,
// written down again; compute copies by values of their own; the memory taken against the plan, and the
// classes of ranks against the layout of each rank.
#include "parallel/group_key.h"

#include <array>
#include <bit>
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

constexpr AxisSet kContext = axes::context, kExpertData = 16;  // no job has them yet
constexpr int kLanes = 16;

float part_gradient(int lane, int part, int use, int64_t element) {
  return input_value(lane * 16 + part, use * 1000 + element);
}

/// The tree over all lanes of one part of the sequence, or of the sums of the first so many of them.
float lane_tree(int part, int use, int64_t element, DType dtype, int parts = 1) {
  std::vector<float> values;
  for (int lane = 0; lane < kLanes; ++lane) {
    values.push_back(part_gradient(lane, part, use, element));
    for (int next = part + 1; next < part + parts; ++next)
      values.back() += part_gradient(lane, next, use, element);
  }
  while (values.size() > 1) {
    if (dtype == DType::bf16)
      for (float& value : values) value = float(bf16(value));
    for (size_t i = 0; i < values.size() / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    values.resize(values.size() / 2);
  }
  return values[0];
}

float exact_weight(int use, int64_t element) { return float((use * 31 + element) % 251); }

struct Uses {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  /// A part of its own, or, if it is joined or its part is named, of the part of the use before.
  void add(AxisSet replicated, AxisSet partial, int64_t rows, int64_t cols, DType dtype = DType::f32,
           bool same_part = false, bool joined = false) {
    ParamUse use;
    use.param = int(uses.size());
    use.part = uses.empty() ? 0 : uses.back().part + !same_part;
    use.joined = joined;
    use.layout = {.name = std::to_string(use.param), .rows = rows, .cols = cols};
    use.layout.cut = rows % 2 ? Cut::none : Cut::rows;
    use.dtype = dtype;
    use.replicated = replicated;
    use.partial = partial;
    grids.push_back(chunk_grid(use.layout, {1}, 12));
    uses.push_back(std::move(use));
  }
  /// The uses [begin, end) of each part.
  std::vector<std::pair<int, int>> parts() const {
    std::vector<std::pair<int, int>> result;
    for (int use = 0; use < int(uses.size()); ++use) {
      if (size_t(uses[size_t(use)].part) == result.size()) result.push_back({use, use});
      result.back().second = use + 1;
    }
    return result;
  }
};

struct Case {
  Uses uses;
  ShardingOptions options;
  int micro_batches = 1;  // of a lane
  /// The sum of a use's gradients over everything that it is partial over.
  std::function<float(int use, int64_t element)> sum;
};

void check_sums(const ShardedParams& params, const Case& c) {
  for (const ShardedParams::StateChunk& chunk : params.state_chunks())
    for (int64_t row = 0; row < chunk.box.rows(); ++row)
      for (int64_t col = 0; col < chunk.box.cols(); ++col) {
        const int64_t cols = c.uses.uses[size_t(chunk.param)].layout.cols;
        const int64_t element = (chunk.box.row_begin + row) * cols + chunk.box.col_begin + col;
        const float sum = chunk.gradient[row * chunk.gradient_stride + col];
        require_same_bits(sum, c.sum(chunk.param, element), fmt::format("use {}", chunk.param), element);
      }
}

void check_weights(ShardedParams& params, const Case& c) {
  for (const ShardedParams::StateChunk& chunk : params.state_chunks())
    for (int64_t i = 0; i < chunk.box.count(); ++i) {
      const int64_t cols = c.uses.uses[size_t(chunk.param)].layout.cols;
      const int64_t row = chunk.box.row_begin + i / chunk.box.cols();
      chunk.floats(StateRole::master)[i] =
          exact_weight(chunk.param, row * cols + chunk.box.col_begin + i % chunk.box.cols());
    }
  params.publish();
  for (const auto& [begin, end] : c.uses.parts()) {
    if (params.shards_weights()) params.gather(begin, end);
    params.await(begin, end);
    for (int use = begin; use < end; ++use) {
      const kernels::Matrix w = params.weight(use);
      for (int64_t i = 0; i < w.count(); ++i) {
        const float value = w.dtype == DType::f32 ? w.as<float>()[i] : float(w.as<bf16>()[i]);
        require(value == exact_weight(use, i), "use {}, element {}: {}", use, i, value);
      }
    }
  }
}

void check_memory(const Case& c, const AxisGroups& groups, kernels::Backend& backend) {
  const size_t planned = ShardedParams::plan(c.uses.uses, c.uses.grids, c.options, groups.lines()).total();
  require(backend.allocated_bytes() == planned, "{} bytes taken, {} planned", backend.allocated_bytes(),
          planned);
}

std::unique_ptr<Communicator> key_group(Communicator& world, int number, const std::function<int(int)>& key) {
  Subgroup group{.members = {}, .number = number, .name = std::to_string(number)};
  for (int r = 0; r < world.size(); ++r)
    if (key(r) == key(world.rank())) group.members.push_back(r);
  return world.subgroup(group);
}

/// Ranks: context fastest, then data. A context rank has the gradients of its part of each sequence.
void run_context(Communicator& world, int context, const Case& c) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  const auto data = key_group(world, 1, [&](int r) { return r % context; });
  const auto parts = key_group(world, 2, [&](int r) { return r / context; });
  const auto alone = make_thread_world(1, 60);
  AxisGroups groups(*data, *alone[0], nullptr);
  groups.add(kContext, *parts);
  ShardedParams params(c.uses.uses, c.uses.grids, c.options, groups, *backend, *stream);
  check_memory(c, groups, *backend);
  const bool by_lane = c.options.zero_stage >= 2 && data->size() > 1;
  const LaneRun run = lanes_of_rank(kLanes, data->size(), data->rank());
  for (int step = 0; step < 2; ++step) {
    for (int at = 0; at < run.count(); ++at)
      for (int use = params.use_count() - 1; use >= 0; --use) {
        const int lane = by_lane ? at * data->size() + data->rank() : run.begin + at;
        if (by_lane) params.claim_gradients(use, use + 1);
        const kernels::Matrix g = params.gradient(use, at);
        // Not partial: every rank of the context group has the whole gradient.
        const bool partial = c.uses.uses[size_t(use)].partial & kContext;
        for (int64_t i = 0; i < g.count(); ++i)
          g.as<float>()[i] = part_gradient(lane, partial ? parts->rank() : 0, use, i);
        params.merge_lane(use, use + 1, at);
        if (by_lane) params.reduce(use, use + 1);
      }
    for (int use = params.use_count() - 1; use >= 0 && !by_lane; --use) params.reduce(use, use + 1);
    params.finish_reduction();
    check_sums(params, c);
  }
  check_weights(params, c);
}

/// The lanes that `ranks` of data parallelism compute at one time; empty: the step is over.
std::vector<std::vector<int>> lanes_at(int time, int ranks, bool by_time) {
  std::vector<std::vector<int>> lanes(static_cast<size_t>(ranks));
  bool any = false;
  for (int r = 0; r < ranks; ++r) {
    const LaneRun run = by_time ? LaneRun{r, kLanes} : lanes_of_rank(kLanes, ranks, r);
    const int lane = run.begin + time * (by_time ? ranks : 1);
    if (lane < run.end) lanes[size_t(r)].push_back(lane), any = true;
  }
  if (!any) lanes.clear();
  return lanes;
}

bool is_expert(const ParamUse& use) { return use.replicated & kExpertData; }

/// A micro-batch of each of these lanes, which are computed at one time; the first one is number
/// `first_lane` of those that come to this rank.
void add_micro_batch(ShardedParams& params, int use, const std::vector<int>& lanes, int first_lane,
                     int micro_batch, bool last) {
  for (int at = 0; at < int(lanes.size()); ++at) {
    const kernels::Matrix g = params.gradient(use, first_lane + at);
    for (int64_t i = 0; i < g.count(); ++i) {
      const float value = part_gradient(lanes[size_t(at)], micro_batch, use, i);
      g.as<float>()[i] = micro_batch == 0 ? value : g.as<float>()[i] + value;
    }
    if (last) params.merge_lane(use, use + 1, first_lane + at);
  }
}

/// A step of ranks of which `experts` neighbours have all experts: every rank's experts have the lanes that
/// these neighbours compute at that time.
void run_step(ShardedParams& params, int ranks, int rank, int experts, const Case& c) {
  const bool by_time = c.options.zero_stage >= 2 && ranks > 1;
  const std::vector<std::pair<int, int>> parts = c.uses.parts();
  std::vector<int> came(c.uses.uses.size());
  for (int time = 0;; ++time) {
    const std::vector<std::vector<int>> lanes = lanes_at(time, ranks, by_time);
    if (lanes.empty()) break;
    for (int micro_batch = 0; micro_batch < c.micro_batches; ++micro_batch) {
      const bool last = micro_batch + 1 == c.micro_batches;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (by_time && micro_batch == 0) params.claim_gradients(part->first, part->second);
        for (int use = part->first; use < part->second; ++use) {
          const int sharing = is_expert(c.uses.uses[size_t(use)]) ? experts : 1;
          std::vector<int> here;
          for (int r = rank / sharing * sharing; r < rank / sharing * sharing + sharing; ++r)
            here.insert(here.end(), lanes[size_t(r)].begin(), lanes[size_t(r)].end());
          add_micro_batch(params, use, here, came[size_t(use)], micro_batch, last);
          if (last) came[size_t(use)] += int(here.size());
        }
        if (by_time && last) params.reduce(part->first, part->second);
      }
    }
  }
  for (auto part = parts.rbegin(); part != parts.rend() && !by_time; ++part)
    params.reduce(part->first, part->second);
  params.finish_reduction();
}

/// Of each `experts` neighbours, data-parallel rank r has the experts of number r % experts: so the line of
/// copies has fewer ranks, and their gradients come from the lanes of `experts` ranks.
void run_experts(Communicator& world, int experts, const Case& c) {
  const auto backend = kernels::make_reference_backend();
  const auto stream = backend->create_stream();
  const auto copies = key_group(world, 1, [&](int r) { return r % experts; });
  const auto alone = make_thread_world(1, 60);
  AxisGroups groups(world, *alone[0], nullptr);
  groups.add(kExpertData, *copies, true);
  ShardedParams params(c.uses.uses, c.uses.grids, c.options, groups, *backend, *stream);
  check_memory(c, groups, *backend);
  for (size_t use = 1; use < c.uses.uses.size(); ++use)
    if (const kernels::Matrix w = params.weight(int(use) - 1); c.uses.uses[use].joined)
      require(params.weight(int(use)).data == w.as<char>() + size_t(w.count()) * size_of(w.dtype),
              "use {} is not joined", use);
  for (int step = 0; step < 2; ++step) {
    run_step(params, world.size(), world.rank(), experts, c);
    check_sums(params, c);
  }
  check_weights(params, c);
}

/// Some parts of experts, some of other parameters, some of both.
Uses expert_uses() {
  Uses uses;
  uses.add(axes::data, axes::data, 8, 6);
  uses.add(kExpertData, kExpertData, 10, 6, DType::bf16);
  uses.add(kExpertData, kExpertData, 6, 6, DType::bf16, true, true);
  uses.add(axes::data, axes::data, 5, 6, DType::bf16, true);
  uses.add(kExpertData, kExpertData, 4, 6);
  uses.add(axes::data, axes::data, 6, 6);
  uses.add(kExpertData, kExpertData, 7, 1, DType::f32, true);
  uses.add(axes::data, axes::data, 7, 1);
  return uses;
}

/// How a stage of ZeRO can be used.
struct Stage {
  int zero = 0;
  bool shares_gradients = false, shares_weights = false, accumulates = false;
};
constexpr Stage kStages[] = {{0},
                             {0, false, false, true},
                             {1},
                             {1, false, false, true},
                             {2},
                             {2, false, false, true},
                             {2, true},
                             {3, false, true},
                             {3, true},
                             {3, false, true, true},
                             {3, true, true}};

struct ReductionWay {
  DType dtype;
  ExchangeChoice exchange;
  int64_t bucket_elements;
};
constexpr ReductionWay kWays[] = {{DType::f32, ExchangeChoice::automatic, 20},
                         {DType::f32, ExchangeChoice::direct, 100000},
                         {DType::bf16, ExchangeChoice::halving, 1},
                         {DType::bf16, ExchangeChoice::direct, 60}};

}  // namespace

TEST_CASE("a parameter's group follows from its axes, its form and its dtype", "[groups]") {
  const AxisLines lines = {
      {axes::data, 4, 1, true}, {axes::tensor, 2, 0}, {axes::uses, 1, 0}, {kContext, 2, 1}};
  ParamUse use;
  use.layout = {.name = "w", .rows = 8, .cols = 1, .cut = Cut::rows};
  const GroupKey vector = key_of(use);
  CHECK(name_of(vector) == "cut vectors");
  CHECK(vector.lane_axis(lines) == axes::data);
  CHECK(vector.sum_axes(lines).empty());
  CHECK_FALSE(vector.repeats_sums(lines));
  use.dtype = DType::bf16;
  CHECK(name_of(key_of(use)) == "cut matrices");
  CHECK(key_of(use) < vector);
  use.layout.cut = Cut::none;
  use.replicated |= axes::tensor;
  CHECK(name_of(key_of(use)) == "whole parameters");
  CHECK(key_of(use).repeats_sums(lines));
  use.partial |= axes::tensor | kContext | axes::uses;
  use.replicated |= kContext;
  CHECK(name_of(key_of(use)) == "parameters with partial sums");
  CHECK(key_of(use).sum_axes(lines) == std::vector<AxisSet>{axes::tensor, kContext});
  CHECK_FALSE(key_of(use).repeats_sums(lines));
  use.replicated = use.partial = kContext;
  CHECK(key_of(use).lane_axis(lines) == 0);
}

TEST_CASE("parameters along a context axis are reduced, added and gathered", "[groups]") {
  for (const auto& [ranks, context] : {std::pair{1, 2}, {2, 2}, {4, 2}, {2, 3}, {3, 2}, {1, 4}})
    for (const int zero : {0, 1, 2, 3})
      for (const ReductionWay& way : kWays) {
        if (zero >= 2 && !std::has_single_bit(unsigned(ranks))) continue;
        CAPTURE(ranks, context, zero, name_of(way.dtype), word_of(way.exchange), way.bucket_elements);
        const AxisSet both = axes::data | kContext;
        Case c;
        c.uses.add(both, both, 8, 6);
        c.uses.add(both, both, 7, 6, DType::bf16);
        c.uses.add(both, axes::data, 5, 1);  // the same gradient on every context rank
        c.uses.add(both, both, 6, 1);
        c.options = {.zero_stage = zero,
                     .shares_gradients = zero == 3 && ranks > 1,
                     .lanes = kLanes,
                     .bucket_elements = way.bucket_elements,
                     .reduction_dtype = way.dtype,
                     .exchange = way.exchange};
        c.sum = [&c, &way, parts = context](int use, int64_t element) {
          std::vector<float> sums;
          const bool partial = c.uses.uses[size_t(use)].partial & kContext;
          for (int part = 0; part < (partial ? parts : 1); ++part)
            sums.push_back(lane_tree(part, use, element, way.dtype));
          return serial_tree(sums);
        };
        CHECK_NOTHROW(on_rank_threads(ranks * context, kLongS,
                                      [&, of = context](Communicator& world) { run_context(world, of, c); }));
      }
}

TEST_CASE("parameters of experts are shared by fewer ranks, which have more lanes each", "[groups]") {
  // Of 10 ranks and 5 places, the last place has lanes 13, 15 and 14, in this order: a sum that is left is
  // not in the level of its number.
  for (const auto& [ranks, experts] :
       {std::pair{2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 2}, {8, 4}, {8, 8}, {6, 2}, {6, 3}, {3, 3}, {10, 2}})
    for (const Stage& stage : kStages)
      for (const ReductionWay& way : kWays) {
        if (stage.zero >= 2 && !std::has_single_bit(unsigned(ranks))) continue;
        CAPTURE(ranks, experts, stage.zero, stage.shares_gradients, stage.shares_weights, stage.accumulates,
                name_of(way.dtype), word_of(way.exchange), way.bucket_elements);
        Case c{.uses = expert_uses()};
        c.options = {.zero_stage = stage.zero,
                     .shares_gradients = stage.shares_gradients,
                     .shares_weights = stage.shares_weights,
                     .lanes = kLanes,
                     .accumulates = stage.accumulates,
                     .bucket_elements = way.bucket_elements,
                     .reduction_dtype = way.dtype,
                     .exchange = way.exchange};
        c.micro_batches = stage.accumulates ? 3 : 1;
        c.sum = [&](int use, int64_t element) {
          return lane_tree(0, use, element, way.dtype, c.micro_batches);
        };
        CHECK_NOTHROW(on_rank_threads(ranks, kLongS,
                                      [&, of = experts](Communicator& world) { run_experts(world, of, c); }));
      }
}

TEST_CASE("the classes of ranks are the memory of every rank, also along two lines", "[groups]") {
  const auto numbers = [](const ShardingBytes& b) {
    return std::array<int64_t, 8>{int64_t(b.weights),       int64_t(b.gradients), int64_t(b.optimizer),
                                  int64_t(b.communication), b.state_boxes,        b.state_elements,
                                  int64_t(b.saved),         b.saved_chunks};
  };
  const Uses uses = expert_uses();
  for (const auto& [ranks, experts] :
       {std::pair{1, 1}, {4, 1}, {4, 2}, {4, 4}, {8, 2}, {8, 8}, {6, 2}, {7, 7}, {12, 4}, {16, 4}})
    for (const Stage& stage : kStages)
      for (const DType dtype : {DType::f32, DType::bf16}) {
        if (stage.zero >= 2 && (ranks == 1 || !std::has_single_bit(unsigned(ranks)))) continue;
        CAPTURE(ranks, experts, stage.zero, stage.shares_gradients, stage.shares_weights, stage.accumulates,
                name_of(dtype));
        const ShardingOptions options{.zero_stage = stage.zero,
                                      .shares_gradients = stage.shares_gradients,
                                      .shares_weights = stage.shares_weights,
                                      .lanes = 16,
                                      .accumulates = stage.accumulates,
                                      .bucket_elements = 30,
                                      .reduction_dtype = dtype};
        const auto lines_of = [&, ranks = ranks, experts = experts](int r) {
          return AxisLines{{axes::data, ranks, r, true}, {kExpertData, ranks / experts, r / experts, true}};
        };
        const std::vector<sharding::RankClass> classes =
            sharding::rank_classes(uses.uses, uses.grids, options, lines_of(0));
        size_t next = 0;
        for (int r = 0; r < ranks; ++r) {
          const sharding::Layout layout = sharding::make_layout(uses.uses, uses.grids, options, lines_of(r));
          REQUIRE(layout.plan.lines.size() == 2);
          CHECK(layout.plan.lines[1].rank_of(r) == layout.shares[1].rank);
          const auto bytes = numbers(layout.bytes());
          if (next < classes.size() && classes[next].first_rank == r)
            CHECK(numbers(classes[next++].bytes) == bytes);
          else
            CHECK(std::any_of(classes.begin(), classes.begin() + int64_t(next),
                              [&](const auto& known) { return numbers(known.bytes) == bytes; }));
        }
        CHECK(next == classes.size());
      }
}

TEST_CASE("only the gradients of experts take the memory of more lanes", "[groups]") {
  Uses uses;
  uses.add(axes::data, axes::data, 8, 8);     // 256 bytes of gradients
  uses.add(kExpertData, kExpertData, 16, 8);  // 512 bytes
  for (const auto& [zero, lanes, accumulates, levels, expert_levels] :
       // Two lanes a rank, one after another: two sums. Of four ranks together: one lane each, and the
       // first of the next ones, or all of them.
       {std::array{1, 8, 0, 2, 5},
        {1, 8, 1, 2, 8},
        {1, 4, 0, 1, 3},
        {1, 4, 1, 1, 4},
        {2, 8, 0, 1, 3},
        {2, 8, 1, 1, 4}}) {
    CAPTURE(zero, lanes, accumulates);
    const ShardingOptions options{.zero_stage = zero, .lanes = lanes, .accumulates = accumulates == 1};
    const AxisLines axes{{axes::data, 4, 2, true}, {kExpertData, 1, 0, true}};
    const ShardingBytes bytes = ShardedParams::plan(uses.uses, uses.grids, options, axes);
    CHECK(bytes.gradients == size_t(256 * levels + 512 * expert_levels));
  }
}

TEST_CASE("the uses of a tied embedding are added where fewer ranks own a part of it than there are",
          "[groups]") {
  const auto backend = kernels::make_reference_backend();
  ParamUse embedding;
  embedding.layout = {.name = "embedding", .rows = 2, .cols = 6};
  embedding.replicated = embedding.partial = axes::data | axes::uses;
  ParamUse head = embedding;
  head.use = 1;
  const std::vector<ParamUse> uses = {embedding, head};
  const std::vector<std::vector<Box>> grids = {chunk_grid(embedding.layout, {1}, 12)};
  REQUIRE(grids.front().size() == 1);
  for (const int ranks : {1, 2, 3, 4})
    for (const int zero_stage : {0, 1}) {
      CAPTURE(ranks, zero_stage);
      std::vector<int64_t> checked(static_cast<size_t>(ranks));
      CHECK_NOTHROW(on_rank_threads(ranks, kLongS, [&](Communicator& dp) {
        const auto stream = backend->create_stream();
        const auto alone = make_thread_world(1, 60);
        const ShardingOptions options{.zero_stage = zero_stage, .lanes = 4};
        ShardedParams params(uses, grids, options, {dp, *alone[0], nullptr}, *backend, *stream);
        const LaneRun run = lanes_of_rank(4, ranks, dp.rank());
        for (int lane = 0; lane < run.count(); ++lane) {
          for (int use = 0; use < 2; ++use)
            for (int64_t i = 0; i < 12; ++i)
              params.gradient(use, lane).as<float>()[i] = part_gradient(run.begin + lane, 0, use, i);
          params.merge_lane(0, 2, lane);
        }
        params.reduce(1, 2);
        params.reduce(0, 1);
        params.finish_reduction();
        for (const ShardedParams::StateChunk& c : params.state_chunks())
          for (int64_t i = 0; i < c.box.count(); ++i, ++checked[size_t(dp.rank())]) {
            std::array<float, 2> sums{};
            for (int use = 0; use < 2; ++use) {
              std::vector<float> values;
              for (int lane = 0; lane < 4; ++lane) values.push_back(part_gradient(lane, 0, use, i));
              sums[size_t(use)] = serial_tree(values);
            }
            require(c.gradient[i] == sums[0] + sums[1], "element {}: {}", i, c.gradient[i]);
          }
      }));
      CHECK(std::count(checked.begin(), checked.end(), 12) == (zero_stage == 0 ? ranks : 1));
    }
}

}  // namespace trainctl::test
