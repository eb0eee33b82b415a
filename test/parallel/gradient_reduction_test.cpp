// Goal: the sums of gradients over the dp ranks have the bits of the balanced tree over all lanes, whatever
// the number of ranks and the size of the buckets, also where ranks own nothing of a bucket; a step's
// messages are those of recursive halving; a peer that is lost in any round is named; and the compute copies
// that AdamW writes come to all ranks. Method: gradients of seeded values whose sums round, on 1 to 8 rank
// threads, plain and through staging memory, compared with the tree of transport_checks.h; messages counted
// by the tally twin for up to 64 ranks. For the compute copies, master weights of which each element has a
// value of its own.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <latch>
#include <set>

#include "parallel/buckets.h"
#include "parallel/lane_group.h"
#include "parallel/lanes.h"
#include "parallel/sharded_params.h"
#include "parallel/tally.h"
#include "runtime/base/error.h"
#include "test/parallel/lost_ranks.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"

namespace trainctl::test {
namespace {

using namespace parallel;

constexpr int kLayers = 5;

AxisLines data_line(int ranks, int rank) { return {{axes::data, ranks, rank, true}}; }

struct Model {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
};

/// Matrices of different heights, cut into chunks of up to 12 elements, and a vector that is not cut.
Model model(int layers = kLayers) {
  Model m;
  for (int layer = 0; layer < layers; ++layer) {
    ParamUse use;
    use.param = layer;
    use.layout = {.name = "layers." + std::to_string(layer), .rows = 5 + layer, .cols = layer == 2 ? 1 : 6};
    use.layout.cut = layer % 2 ? Cut::rows : Cut::none;
    use.dtype = layer % 2 ? DType::bf16 : DType::f32;
    m.grids.push_back(chunk_grid(use.layout, {1}, 12));
    m.uses.push_back(std::move(use));
  }
  return m;
}

float gradient_value(int lane, int use, int64_t element) { return input_value(lane, use * 1000 + element); }
/// bf16 holds it exactly.
float weight_value(int use, int64_t element) { return float((use * 31 + element) % 251); }

struct ReduceCase {
  Model m = model();
  int zero_stage = 1;
  int64_t bucket_elements = 1;
  int lanes = 8;
  DType dtype = DType::f32;
  ExchangeChoice exchange = ExchangeChoice::automatic;

  ShardingOptions options() const {
    return {.zero_stage = zero_stage,
            .lanes = lanes,
            .bucket_elements = bucket_elements,
            .reduction_dtype = dtype,
            .exchange = exchange};
  }

  /// The rule of parallel/lane_sums.h, written down again.
  float sum_of_lanes(std::vector<float> values) const {
    while (values.size() > 1) {
      if (dtype == DType::bf16)
        for (float& value : values) value = float(bf16(value));
      for (size_t i = 0; i < values.size() / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
      values.resize(values.size() / 2);
    }
    return values[0];
  }

  void fill(ShardedParams& params, const Communicator& dp) const {
    const LaneRun run = lanes_of_rank(lanes, dp.size(), dp.rank());
    for (int lane = 0; lane < run.count(); ++lane) {
      for (int use = 0; use < kLayers; ++use) {
        const kernels::Matrix g = params.gradient(use, lane);
        for (int64_t i = 0; i < g.count(); ++i) g.as<float>()[i] = gradient_value(run.begin + lane, use, i);
      }
      params.merge_lane(0, kLayers, lane);
    }
  }

  /// Every sum that is on this rank must have the bits of the tree over all lanes.
  void check(const ShardedParams& params, int ranks) const {
    size_t checked = 0;
    for (const ShardedParams::StateChunk& c : params.state_chunks())
      for (int64_t row = 0; row < c.box.rows(); ++row)
        for (int64_t col = 0; col < c.box.cols(); ++col, ++checked) {
          std::vector<float> values;
          const int64_t cols = m.uses[size_t(c.param)].layout.cols;
          const int64_t element = (c.box.row_begin + row) * cols + c.box.col_begin + col;
          for (int lane = 0; lane < lanes; ++lane) values.push_back(gradient_value(lane, c.param, element));
          const float expected = sum_of_lanes(values), sum = c.gradient[row * c.gradient_stride + col];
          require(std::bit_cast<uint32_t>(sum) == std::bit_cast<uint32_t>(expected),
                  "param {}, element {}: {:a}, not {:a}", c.param, element, sum, expected);
        }
    require(checked > 0 || ranks > 1, "nothing was checked");
  }

  void run(Communicator& dp, kernels::Backend& backend) const {
    const auto stream = backend.create_stream();
    const auto alone = make_thread_world(1, 60);
    ShardedParams params(m.uses, m.grids, options(), {dp, *alone[0], nullptr}, backend, *stream);
    for (int step = 0; step < 2; ++step) {
      fill(params, dp);
      for (int use = kLayers - 1; use >= 0; --use) params.reduce(use, use + 1);
      params.finish_reduction();
      check(params, dp.size());
    }
  }

  /// ZeRO-2: the ranks have neighbouring lanes at one time. Gradients are overwritten as soon as allowed.
  void run_by_lanes(Communicator& dp, kernels::Backend& backend, bool shares) const {
    const auto stream = backend.create_stream();
    const auto alone = make_thread_world(1, 60);
    Model parts = m;
    for (int use = 0; use < int(m.uses.size()); ++use) parts.uses[size_t(use)].part = use;
    ShardingOptions of = options();
    of.zero_stage = 2;
    of.shares_gradients = shares;
    ShardedParams params(parts.uses, parts.grids, of, {dp, *alone[0], nullptr}, backend, *stream);
    for (int step = 0; step < 2; ++step) {
      for (int lane = 0; lane < lanes / dp.size(); ++lane)
        for (int use = int(m.uses.size()) - 1; use >= 0; --use) {
          params.claim_gradients(use, use + 1);
          const kernels::Matrix g = params.gradient(use, lane);
          for (int64_t i = 0; i < g.count(); ++i)
            g.as<float>()[i] = gradient_value(lane * dp.size() + dp.rank(), use, i);
          params.merge_lane(use, use + 1, lane);
          params.reduce(use, use + 1);
          params.go_on();
        }
      params.finish_reduction();
      check(params, dp.size());
    }
  }

  void check_weight(const ShardedParams& params, int use) const {
    const kernels::Matrix w = params.weight(use);
    for (int64_t i = 0; i < w.count(); ++i) {
      const float value = w.dtype == DType::f32 ? w.as<float>()[i]
                                                : std::bit_cast<float>(uint32_t(w.as<uint16_t>()[i]) << 16);
      require(value == weight_value(use, i), "use {}, element {}: {}", use, i, value);
    }
  }

  void set_masters(ShardedParams& params) const {
    for (const ShardedParams::StateChunk& c : params.state_chunks())
      for (int64_t row = 0; row < c.box.rows(); ++row)
        for (int64_t col = 0; col < c.box.cols(); ++col)
          c.floats(StateRole::master)[row * c.box.cols() + col] = weight_value(
              c.param, (c.box.row_begin + row) * m.uses[size_t(c.param)].layout.cols + c.box.col_begin + col);
  }

  /// The owners publish; then a use is read as soon as it is awaited.
  void gather(Communicator& dp, kernels::Backend& backend) const {
    const auto stream = backend.create_stream();
    const auto alone = make_thread_world(1, 60);
    ShardedParams params(m.uses, m.grids, options(), {dp, *alone[0], nullptr}, backend, *stream);
    set_masters(params);
    params.publish();
    for (int use = 0; use < kLayers; ++use) {
      params.await(use, use + 1);
      check_weight(params, use);
    }
  }

  /// ZeRO-3: parts in two places, forth and back, while gradients are reduced.
  void gather_parts(Communicator& dp, kernels::Backend& backend) const {
    const auto stream = backend.create_stream();
    const auto alone = make_thread_world(1, 60);
    Model parts = m;
    for (int use = 0; use < kLayers; ++use) parts.uses[size_t(use)].part = use;
    ShardingOptions of = options();
    of.zero_stage = 3;
    of.shares_gradients = true;
    ShardedParams params(parts.uses, parts.grids, of, {dp, *alone[0], nullptr}, backend, *stream);
    set_masters(params);
    params.publish();
    for (int lane = 0; lane < lanes / dp.size(); ++lane) {
      params.gather(0, 1);
      for (int use = 0; use < kLayers; ++use) {
        if (use + 1 < kLayers) params.gather(use + 1, use + 2);
        params.await(use, use + 1);
        check_weight(params, use);
      }
      for (int use = kLayers - 1; use >= 0; --use) {
        if (use > 0 && use < kLayers - 1) params.gather(use - 1, use);
        if (use < kLayers - 2) params.await(use, use + 1);
        check_weight(params, use);
        params.claim_gradients(use, use + 1);
        const kernels::Matrix g = params.gradient(use, lane);
        for (int64_t i = 0; i < g.count(); ++i)
          g.as<float>()[i] = gradient_value(lane * dp.size() + dp.rank(), use, i);
        params.merge_lane(use, use + 1, lane);
        params.reduce(use, use + 1);
        params.go_on();
      }
    }
    params.finish_reduction();
    check(params, dp.size());
  }
};

/// Through staging memory or not, the format in which gradients travel, and how.
struct Travel {
  bool staged;
  DType dtype;
  ExchangeChoice exchange;
};
constexpr Travel kTravels[] = {
    {false, DType::f32, ExchangeChoice::automatic}, {true, DType::f32, ExchangeChoice::halving},
    {false, DType::f32, ExchangeChoice::direct},    {false, DType::bf16, ExchangeChoice::halving},
    {true, DType::bf16, ExchangeChoice::direct},    {false, DType::bf16, ExchangeChoice::automatic}};

Wrap staged_if(bool staged, kernels::Backend& backend) {
  if (!staged) return nullptr;
  return [&backend](auto host) { return make_staged_communicator(std::move(host), backend, 100); };
}

}  // namespace

TEST_CASE("sums of gradients have the bits of the tree over the ranks", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const int zero_stage : {0, 1})
      for (const int64_t bucket_elements : {1, 20, 60, 100000})
        for (const auto& [staged, dtype, exchange] : kTravels) {
          const int lanes = bucket_elements == 20 ? 16 : 8;
          CAPTURE(ranks, lanes, zero_stage, bucket_elements, staged, name_of(dtype), word_of(exchange));
          const ReduceCase reduction{.zero_stage = zero_stage,
                                    .bucket_elements = bucket_elements,
                                    .lanes = lanes,
                                    .dtype = dtype,
                                    .exchange = exchange};
          CHECK_NOTHROW(on_rank_threads(
              ranks, kLongS, [&](Communicator& dp) { reduction.run(dp, *backend); },
              staged_if(staged, *backend)));
        }
}

TEST_CASE("lanes that are reduced one by one have the bits of the same tree", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  for (const int ranks : {2, 4, 8})
    for (const bool shares : {false, true})
      for (const int64_t bucket_elements : {1, 20, 100000})
        for (const auto& [staged, dtype, exchange] : kTravels) {
          CAPTURE(ranks, shares, bucket_elements, staged, name_of(dtype), word_of(exchange));
          const ReduceCase reduction{
              .bucket_elements = bucket_elements, .lanes = 32, .dtype = dtype, .exchange = exchange};
          CHECK_NOTHROW(on_rank_threads(
              ranks, kLongS, [&](Communicator& dp) { reduction.run_by_lanes(dp, *backend, shares); },
              staged_if(staged, *backend)));
        }
}

TEST_CASE("lanes whose buckets follow one another directly are not mixed up", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  for (const int ranks : {2, 4, 8})
    for (const auto& [staged, dtype, exchange] : kTravels) {
      CAPTURE(ranks, staged, name_of(dtype), word_of(exchange));
      const ReduceCase reduction{
          .m = model(1), .bucket_elements = 100000, .lanes = 256, .dtype = dtype, .exchange = exchange};
      CHECK_NOTHROW(on_rank_threads(
          ranks, kLongS, [&](Communicator& dp) { reduction.run_by_lanes(dp, *backend, false); },
          staged_if(staged, *backend)));
    }
}

TEST_CASE("compute copies come from their owners to all ranks", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const int64_t bucket_elements : {1, 20, 60, 100000})
      for (const auto& [staged, dtype, exchange] : kTravels) {
        CAPTURE(ranks, bucket_elements, staged, name_of(dtype), word_of(exchange));
        const ReduceCase reduction{.bucket_elements = bucket_elements, .dtype = dtype, .exchange = exchange};
        CHECK_NOTHROW(on_rank_threads(
            ranks, kLongS, [&](Communicator& dp) { reduction.gather(dp, *backend); },
            staged_if(staged, *backend)));
      }
}

TEST_CASE("no message of a gather can be taken for one of a reduction", "[reduction]") {
  const auto alone = make_thread_world(1, 60);
  sharding::LaneGroup reducing(alone[0].get(), sharding::LaneTags::reductions),
      gathering(alone[0].get(), sharding::LaneTags::gathers);
  std::set<int> reductions, gathers;
  for (int i = 0; i < 3000; ++i) reductions.insert(reducing.take_tag()), gathers.insert(gathering.take_tag());
  for (const int tag : gathers) CHECK(!reductions.contains(tag));
  CHECK(*reductions.begin() > 0);   // 0 is that of the group's collectives
  CHECK(*gathers.rbegin() < 1024);
  CHECK(std::min(reductions.size(), gathers.size()) > 4);   // more than are under way at one time
}

TEST_CASE("compute copies come part by part, in two places, while gradients are reduced", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  for (const int ranks : {2, 4, 8})
    for (const int64_t bucket_elements : {1, 20, 100000})
      for (const auto& [staged, dtype, exchange] : kTravels) {
        CAPTURE(ranks, bucket_elements, staged, name_of(dtype), word_of(exchange));
        const ReduceCase reduction{
            .bucket_elements = bucket_elements, .lanes = 16, .dtype = dtype, .exchange = exchange};
        CHECK_NOTHROW(on_rank_threads(
            ranks, kLongS, [&](Communicator& dp) { reduction.gather_parts(dp, *backend); },
            staged_if(staged, *backend)));
      }
}

TEST_CASE("a rank goes on with its backward pass while a peer has not come", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  std::latch passed(1);  // rank 0 has given all its gradients
  CHECK_NOTHROW(on_rank_threads(2, kLongS, [&](Communicator& dp) {
    const auto stream = backend->create_stream();
    const auto alone = make_thread_world(1, 60);
    const ReduceCase reduction{.bucket_elements = 1};  // far more buckets than the ring has room for
    ShardedParams params(reduction.m.uses, reduction.m.grids, reduction.options(), {dp, *alone[0], nullptr},
                         *backend, *stream);
    reduction.fill(params, dp);
    if (dp.rank() == 1) passed.wait();
    for (int use = kLayers - 1; use >= 0; --use) params.reduce(use, use + 1);
    if (dp.rank() == 0) passed.count_down();
    params.finish_reduction();
    reduction.check(params, 2);
  }));
}

TEST_CASE("the reduction sends a ring's bytes, in at most log2 messages a bucket", "[reduction]") {
  const Model m = model();
  int64_t all = 0;
  for (const auto& grid : m.grids)
    for (const Box& box : grid) all += box.count();
  const auto sweep = [&](int ranks, int64_t bucket_elements, DType dtype) {
    CAPTURE(ranks, bucket_elements, name_of(dtype));
    const ShardingOptions options{
        .bucket_elements = bucket_elements, .reduction_dtype = dtype, .exchange = ExchangeChoice::halving};
    const auto backend = kernels::make_reference_backend();
    const auto stream = backend->create_stream();
    double sent = 0;
    uint64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      TrafficTally tally;
      const auto dp = make_tally_communicator(TrafficGroup::data, rank, ranks, tally);
      const auto alone = make_thread_world(1, 60);
      ShardedParams params(m.uses, m.grids, options, {*dp, *alone[0], nullptr}, *backend, *stream);
      params.reduce(0, kLayers);
      params.finish_reduction();
      uint64_t messages = 0;
      for (const auto& [key, count] : tally.messages)
        if (key.way == Way::send) messages += count;
      most = std::max(most, messages);
      sent += tally.sent(TrafficGroup::data);
    }
    CHECK(sent == double(all) * double(size_of(dtype)) * (ranks - 1));  // of all ranks together
    uint64_t buckets = 0;
    const auto layout = sharding::make_layout(m.uses, m.grids, options, data_line(ranks, 0));
    for (const auto& group : layout.plan.groups) buckets += group.buckets.size();
    CHECK(most <= buckets * uint64_t(std::countr_zero(unsigned(ranks))));
  };
  for (const int ranks : {2, 4, 8, 64})
    for (const int64_t bucket_elements : {12, 60, 100000})
      for (const DType dtype : {DType::f32, DType::bf16}) sweep(ranks, bucket_elements, dtype);
}

namespace {

/// What rank 0 says when `lost` never comes, at the first thing that it waits for in `work`.
std::string error_without(int lost, int ranks, const std::function<void(ShardedParams&)>& work) {
  const auto backend = kernels::make_reference_backend();
  std::string message;
  RanksThatCome others(ranks - 1);
  const auto run = [&](Communicator& dp) {
    const auto stream = backend->create_stream();
    const auto alone = make_thread_world(1, 60);
    const Model m = model();
    if (dp.rank() == lost) return;
    ShardedParams params(m.uses, m.grids,
                         {.lanes = 8, .bucket_elements = 100000, .exchange = ExchangeChoice::halving},
                         {dp, *alone[0], nullptr}, *backend, *stream);
    try {
      work(params);
      require(false, "rank {} ended", dp.rank());
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kPeerLost, "{}", error.what());
      if (dp.rank() == 0) message = error.what();
    }
  };
  on_rank_threads(ranks, 0.05, run,
                  [&](std::unique_ptr<Communicator> end) { return others.end_of(std::move(end)); });
  return message;
}

}  // namespace

TEST_CASE("a peer that is lost is named, in any round of the halving and in the exchange of slices",
          "[reduction]") {
  for (const auto& [ranks, lost] :
       {std::pair{8, 1}, {8, 2}, {8, 4}, {5, 2}, {3, 1}}) {  // of 8: in rounds 0 to 2
    CAPTURE(ranks, lost);
    CHECK(error_without(lost, ranks, [](ShardedParams& params) {
            params.reduce(0, kLayers);
            params.finish_reduction();
          }) == fmt::format("world: reduce gradients: rank {} (world) did not arrive within 0.05 s", lost));
    const std::string gathering = error_without(lost, ranks, [](ShardedParams& params) {
      params.publish();
      params.finish_gathers();
    });
    if (std::has_single_bit(unsigned(ranks))) {
      CHECK(gathering ==
            fmt::format("world: gather parameters: rank {} (world) did not arrive within 0.05 s", lost));
    } else {   // other ranks wait for it, too, so that their slices do not come
      CHECK_THAT(
          gathering,
          Catch::Matches(fmt::format(
              "world: gather parameters: ranks? .*{}.* \\(world\\) did not arrive within 0.05 s", lost)));
    }
  }
}

TEST_CASE("at any width, a rank's messages and memory in a reduction are bounded by its subtrees",
          "[reduction]") {
  const Model m = model();
  int64_t all = 0;
  for (const auto& grid : m.grids)
    for (const Box& box : grid) all += box.count();
  constexpr int kLanes = 64;
  for (const int ranks : {3, 5, 6, 7, 33, 63}) {
    CAPTURE(ranks);
    const auto backend = kernels::make_reference_backend();
    const auto stream = backend->create_stream();
    for (int rank = 0; rank < ranks; ++rank) {
      TrafficTally tally;
      const auto dp = make_tally_communicator(TrafficGroup::data, rank, ranks, tally);
      const auto alone = make_thread_world(1, 60);
      const ShardingOptions options{.lanes = kLanes, .bucket_elements = 100000};
      ShardedParams params(m.uses, m.grids, options, {*dp, *alone[0], nullptr}, *backend, *stream);
      params.reduce(0, kLayers);
      params.finish_reduction();
      const int subtrees = subtree_count(lanes_of_rank(kLanes, ranks, rank));
      // Of each subtree's sums all slices but the own, then its own slice's sums.
      CHECK(tally.sent(TrafficGroup::data) <= double(all * 4 * subtrees + all * 4));
      const auto layout = sharding::make_layout(m.uses, m.grids, options, data_line(ranks, rank));
      CHECK(layout.ring.sums == size_t(4 * subtrees * layout.plan.lines[0].largest.elements));
      CHECK(layout.ring.received <= size_t(4 * (layout.plan.lines[0].subtrees - subtrees) *
                                           (layout.plan.lines[0].largest.elements / ranks + 17)));
      ShardingOptions half = options;
      half.reduction_dtype = DType::bf16;
      const auto in_half = sharding::make_layout(m.uses, m.grids, half, data_line(ranks, rank));
      constexpr size_t kRounding = 64;  // of each of the three areas of a bucket
      CHECK(in_half.ring.sums <= layout.ring.sums / (subtrees > 1 ? 2 : 1) + kRounding);
      CHECK(in_half.ring.received <= layout.ring.received / 2 + kRounding);
      CHECK(in_half.ring.root <=
            size_t(4 * (layout.plan.lines[0].largest.elements / ranks + 17)) + kRounding);
    }
  }
}

}  // namespace trainctl::test
