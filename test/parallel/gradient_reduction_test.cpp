// Goal: the sums of gradients over the dp ranks have the bits of the balanced tree, whatever the number of
// ranks and the size of the buckets, also where ranks own nothing of a bucket; a step's messages are those of
// recursive halving; and a peer that is lost in any round is named.
// Method: gradients of seeded values whose sums round, on 1, 2, 4 and 8 rank threads, plain and through
// staging memory, compared with the tree of transport_checks.h; messages counted by the tally twin for up to
// 64 ranks.
#include <bit>
#include <catch2/catch.hpp>
#include <latch>

#include "parallel/gradient_buckets.h"
#include "parallel/sharded_params.h"
#include "parallel/tally.h"
#include "runtime/base/error.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"

namespace trainctl::test {
namespace {

using namespace parallel;

constexpr int kLayers = 5;

struct Model {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
};

/// Matrices of different heights, cut into chunks of up to 12 elements, and a vector that is not cut.
Model model() {
  Model m;
  for (int layer = 0; layer < kLayers; ++layer) {
    ParamUse use;
    use.param = layer;
    use.layout = {.name = "layers." + std::to_string(layer), .rows = 5 + layer, .cols = layer == 2 ? 1 : 6};
    use.layout.cut = layer % 2 ? Cut::rows : Cut::none;
    use.dtype = DType::f32;
    m.grids.push_back(chunk_grid(use.layout, {1}, 12));
    m.uses.push_back(std::move(use));
  }
  return m;
}

float gradient_value(int rank, int use, int64_t element) { return input_value(rank, use * 1000 + element); }

struct Reduction {
  const Model m = model();
  int zero_stage = 1;
  int64_t bucket_elements = 1;

  void fill(ShardedParams& params, int rank) const {
    for (int use = 0; use < kLayers; ++use) {
      const kernels::Matrix g = params.gradient(use, 0);
      for (int64_t i = 0; i < g.count(); ++i) g.as<float>()[i] = gradient_value(rank, use, i);
    }
  }

  /// Every sum that is on this rank must have the bits of the tree over `ranks`.
  void check(const ShardedParams& params, int ranks) const {
    size_t checked = 0;
    for (const ShardedParams::StateChunk& c : params.state_chunks())
      for (int64_t row = 0; row < c.box.rows(); ++row)
        for (int64_t col = 0; col < c.box.cols(); ++col, ++checked) {
          std::vector<float> values;
          const int64_t cols = m.uses[size_t(c.param)].layout.cols;
          const int64_t element = (c.box.row_begin + row) * cols + c.box.col_begin + col;
          for (int r = 0; r < ranks; ++r) values.push_back(gradient_value(r, c.param, element));
          const float expected = serial_tree(values), sum = c.gradient[row * c.gradient_stride + col];
          require(std::bit_cast<uint32_t>(sum) == std::bit_cast<uint32_t>(expected),
                  "param {}, element {}: {:a}, not {:a}", c.param, element, sum, expected);
        }
    require(checked > 0 || ranks > 1, "nothing was checked");
  }

  void run(Communicator& dp, kernels::Backend& backend) const {
    const auto stream = backend.create_stream();
    const auto alone = make_thread_world(1, 60);
    ShardedParams params(m.uses, m.grids, {.zero_stage = zero_stage, .bucket_elements = bucket_elements}, dp,
                         *alone[0], nullptr, backend, *stream);
    for (int step = 0; step < 2; ++step) {
      fill(params, dp.rank());
      for (int use = kLayers - 1; use >= 0; --use) params.reduce(use, use + 1);
      params.finish_reduction();
      check(params, dp.size());
    }
  }
};

}  // namespace

TEST_CASE("sums of gradients have the bits of the tree over the ranks", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  for (const int ranks : {1, 2, 4, 8})
    for (const int zero_stage : {0, 1})
      for (const int64_t bucket_elements : {1, 20, 60, 100000})
        for (const bool staged : {false, true}) {
          CAPTURE(ranks, zero_stage, bucket_elements, staged);
          const Reduction reduction{.zero_stage = zero_stage, .bucket_elements = bucket_elements};
          Wrap wrap;
          if (staged)
            wrap = [&](auto host) { return make_staged_communicator(std::move(host), *backend, 100); };
          CHECK_NOTHROW(on_rank_threads(
              ranks, 60, [&](Communicator& dp) { reduction.run(dp, *backend); }, wrap));
        }
}

TEST_CASE("a rank goes on with its backward pass while a peer has not come", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  std::latch passed(1);  // rank 0 has given all its gradients
  CHECK_NOTHROW(on_rank_threads(2, 60, [&](Communicator& dp) {
    const auto stream = backend->create_stream();
    const auto alone = make_thread_world(1, 60);
    const Reduction reduction{.bucket_elements = 1};  // far more buckets than the ring has room for
    ShardedParams params(reduction.m.uses, reduction.m.grids, {.bucket_elements = 1}, dp, *alone[0], nullptr,
                         *backend, *stream);
    reduction.fill(params, dp.rank());
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
  for (const int ranks : {2, 4, 8, 64})
    for (const int64_t bucket_elements : {12, 60, 100000}) {
      CAPTURE(ranks, bucket_elements);
      const auto backend = kernels::make_reference_backend();
      const auto stream = backend->create_stream();
      double sent = 0;
      uint64_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        TrafficTally tally;
        const auto dp = make_tally_communicator(TrafficGroup::data, rank, ranks, tally);
        const auto alone = make_thread_world(1, 60);
        ShardedParams params(m.uses, m.grids, {.bucket_elements = bucket_elements}, *dp, *alone[0], nullptr,
                             *backend, *stream);
        params.reduce(0, kLayers);
        params.finish_reduction();
        uint64_t messages = 0;
        for (const auto& [key, count] : tally.messages)
          if (key.way == Way::send) messages += count;
        most = std::max(most, messages);
        sent += tally.sent(TrafficGroup::data);
      }
      CHECK(sent == double(all) * 4 * (ranks - 1));  // of all ranks together
      uint64_t buckets = 0;
      const auto layout =
          sharding::make_layout(m.uses, m.grids, {.bucket_elements = bucket_elements}, ranks, 0, false);
      for (const auto& group : layout.plan.groups)
        buckets += sharding::gradient_buckets(group, bucket_elements).size();
      CHECK(most <= buckets * uint64_t(std::countr_zero(unsigned(ranks))));
    }
}

TEST_CASE("a peer that is lost in any round of the halving is named", "[reduction]") {
  const auto backend = kernels::make_reference_backend();
  for (const int lost_peer : {1, 2, 4}) {  // of rank 0, in rounds 0, 1 and 2
    CAPTURE(lost_peer);
    std::string message;
    on_rank_threads(8, 60, [&](Communicator& dp) {
      const auto stream = backend->create_stream();
      const auto alone = make_thread_world(1, 60);
      const Model m = model();
      const bool lost = dp.rank() == lost_peer;
      if (lost) return;
      dp.set_deadline(0.2);
      ShardedParams params(m.uses, m.grids, {.bucket_elements = 100000}, dp, *alone[0], nullptr, *backend,
                           *stream);
      try {
        params.reduce(0, kLayers);
        params.finish_reduction();
        require(false, "rank {} ended", dp.rank());
      } catch (const Error& error) {
        require(error.code() == ErrorCode::kPeerLost, "{}", error.what());
        if (dp.rank() == 0) message = error.what();
      }
    });
    CHECK(message ==
          fmt::format("world: reduce gradients: rank {} (world) did not arrive within 0.2 s", lost_peer));
  }
}

}  // namespace trainctl::test
