// Goal: sends meet the waits of the ranks that received them, by place, virtual stage, micro-batch and step;
// what has no other end, or arrives before it was sent by the clocks, gets no arrow; a step whose spans were
// overwritten is left out on every rank.
// Method: recordings by hand: a pipeline of two stages with two places of each other axis.
#include <catch2/catch.hpp>

#include "parallel/step_program.h"
#include "runtime/observe/trace/rank_trace.h"

using namespace trainctl;
using namespace trainctl::trace;
using parallel::Act;

namespace {

Recording mesh_rank(int rank, int pp, int dp, int tp) {
  Recording r{
      .rank = rank, .ranks = 8, .pp = pp, .dp = dp, .tp = tp, .pp_size = 2, .dp_size = 2, .tp_size = 2};
  r.first_step = 1;
  r.last_step = 2;
  return r;
}

Span action(Act act, int64_t step, int virtual_stage, int micro_batch, int64_t begin_ns, int64_t end_ns) {
  return {.begin_ns = begin_ns,
          .end_ns = end_ns,
          .step = step,
          .micro_batch = micro_batch,
          .virtual_stage = int16_t(virtual_stage),
          .kind = SpanKind::action,
          .detail = uint8_t(act)};
}

std::vector<RankTrace> placed(std::vector<Recording> recordings) {
  std::vector<RankTrace> ranks;
  for (Recording& r : recordings) ranks.push_back(place(std::move(r), "node", ClockAlignment()));
  return ranks;
}

}  // namespace

TEST_CASE("a send meets the wait of the next stage at the same place, and of nowhere else") {
  Recording first = mesh_rank(0, 0, 0, 0), second = mesh_rank(4, 1, 0, 0), elsewhere = mesh_rank(5, 1, 0, 1);
  first.spans = {action(Act::send_activation, 1, 0, 0, 10, 11), action(Act::send_activation, 1, 0, 1, 20, 21),
                 action(Act::send_activation, 2, 0, 0, 30, 31), action(Act::wait_gradient, 1, 0, 0, 40, 60)};
  second.spans = {action(Act::wait_activation, 1, 1, 0, 5, 15), action(Act::wait_activation, 1, 1, 1, 16, 25),
                  action(Act::send_gradient, 1, 1, 0, 50, 51)};
  elsewhere.spans = {action(Act::wait_activation, 1, 1, 0, 5, 15)};
  const std::vector<RankTrace> ranks = placed({first, second, elsewhere});
  const Flows flows = pair_flows(ranks);
  REQUIRE(flows.flows.size() == 3);
  CHECK(flows.unpaired == 2);  // of step 2, and of the other tensor rank
  CHECK(flows.backwards == 0);
  const auto begin = [&](size_t rank, size_t span) { return ranks[rank].spans[span].begin_ns; };
  for (const auto& [index, from_ns, to_ns] : {std::tuple{0, 10, 5}, std::tuple{1, 20, 16}}) {
    const Flow& flow = flows.flows[size_t(index)];
    CHECK(flow.is_activation);
    CHECK(flow.from == 0);
    CHECK(flow.to == 1);
    CHECK(begin(0, flow.from_span) == from_ns);
    CHECK(begin(1, flow.to_span) == to_ns);
  }
  CHECK_FALSE(flows.flows[2].is_activation);
  CHECK(flows.flows[2].from == 1);
  CHECK(begin(1, flows.flows[2].from_span) == 50);
  CHECK(begin(0, flows.flows[2].to_span) == 40);
}

TEST_CASE("a message that arrives before it was sent by the clocks has no arrow") {
  Recording first = mesh_rank(0, 0, 0, 0), second = mesh_rank(4, 1, 0, 0);
  first.spans = {action(Act::send_activation, 1, 0, 0, 100, 110)};
  second.spans = {action(Act::wait_activation, 1, 1, 0, 5, 15)};
  const Flows flows = pair_flows(placed({first, second}));
  CHECK(flows.flows.empty());
  CHECK(flows.backwards == 1);
  CHECK(flows.unpaired == 0);
}

TEST_CASE("times are those of the common clock") {
  Recording r = mesh_rank(0, 0, 0, 0);
  r.spans = {{.begin_ns = 7'000'000'000, .end_ns = 8'000'000'000, .step = 1},
             {.begin_ns = 7'500'000'000, .end_ns = 7'500'000'000, .sent = 3, .kind = SpanKind::memory}};
  const RankTrace ahead = place(r, "a", ClockAlignment(ClockOffset{.at_s = 0, .offset_s = 5}));
  REQUIRE(ahead.spans.size() == 1);
  CHECK(ahead.spans[0].begin_ns == 2'000'000'000);
  CHECK(ahead.spans[0].end_ns == 3'000'000'000);
  REQUIRE(ahead.counters.size() == 1);
  CHECK(ahead.counters[0].begin_ns == 2'500'000'000);
  CHECK(origin_ns({ahead}) == 2'000'000'000);
  CHECK(origin_ns({}) == 0);
}

TEST_CASE("a step that one rank has not whole is left out on all") {
  const auto with_steps = [](int rank, int64_t first, uint64_t overwritten) {
    Recording r = mesh_rank(rank, 0, 0, 0);
    r.overwritten = overwritten;
    r.last_step = 3;
    // A step's own span ends last.
    for (int64_t step = first; step <= 3; ++step) {
      r.spans.push_back(action(Act::forward, step, 0, 0, 100 * step + 10, 100 * step + 20));
      r.spans.push_back({.begin_ns = 100 * step, .end_ns = 100 * step + 90, .step = step});
      r.spans.push_back(
          {.begin_ns = 100 * step + 50, .end_ns = 100 * step + 50, .sent = 1, .kind = SpanKind::memory});
    }
    return r;
  };
  std::vector<RankTrace> ranks = placed({with_steps(0, 1, 0), with_steps(1, 1, 5)});
  CHECK(whole_steps(ranks).first == 2);  // what is left of step 1 on rank 1 is not all
  CHECK(whole_steps(ranks).last == 3);
  keep_whole_steps(ranks);
  for (const RankTrace& rank : ranks) {
    CHECK(rank.spans.size() == 4);
    CHECK(rank.counters.size() == 2);
    for (const PlacedSpan& span : rank.spans) CHECK(span.begin_ns >= 200);
  }
  // No step is whole: what there is stays.
  std::vector<RankTrace> none = placed({with_steps(0, 3, 7)});
  CHECK(whole_steps(none).count() == 0);
  keep_whole_steps(none);
  CHECK(none[0].spans.size() == 2);
  CHECK(whole_steps({}).count() == 0);
}
