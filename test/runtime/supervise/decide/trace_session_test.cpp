// Goal: a request to trace is complete when every rank of it has handed in and the nodes have answered, or
// have had their time; it fails with one sentence when a rank has nothing or the attempt ends before; nodes
// without recorded ranks are not asked, and nothing counts twice.
// Method: sessions by hand; random orders of all inputs (seeded), after which the state must be one of those.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/supervise/decide/trace_session.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

const std::vector<TraceSession::Node> kNodes = {{"node0", 0, 2}, {"node1", 2, 2}, {"node2", 4, 2}};

TraceSession session_of(std::vector<int> ranks) {
  return TraceSession({.number = 7, .steps = 3, .ranks = std::move(ranks)}, kNodes, 2);
}

TraceResult result_of(int64_t first = 101, int64_t last = 103) {
  return {.number = 7, .first_step = first, .last_step = last, .spans = 10, .overwritten = 1, .problem = ""};
}

/// Answers every question until there is none; returns how many there were.
int answer_all(TraceSession& session, double offset_s, double at_s) {
  int count = 0;
  for (auto nodes = session.take_questions(); !nodes.empty(); nodes = session.take_questions())
    for (const int node : nodes) {
      ++count;
      session.clock(node, {at_s, at_s + offset_s + node, at_s + 0.002 / count});
    }
  return count;
}

}  // namespace

TEST_CASE("a request is complete when all have handed in and the clocks were asked again") {
  TraceSession session = session_of({0, 3});
  CHECK(answer_all(session, 100, 10) == 2 * TraceSession::kQuestions);
  CHECK_FALSE(session.answer().nodes[2].before);  // no rank of it records
  session.handed_in(3, result_of(), 20);
  session.handed_in(3, result_of(), 20);  // again
  session.handed_in(1, result_of(), 20);  // not asked
  CHECK(session.answer().handed_in == 1);
  session.tick(1000);
  CHECK_FALSE(session.is_over());
  session.handed_in(0, result_of(100, 104), 30);
  CHECK(session.answer().handed_in == 2);
  session.tick(30);
  CHECK_FALSE(session.is_over());
  CHECK(answer_all(session, 101, 30) == 2 * TraceSession::kQuestions);
  session.tick(30.01);
  REQUIRE(session.is_over());
  const TraceAnswer& answer = session.answer();
  CHECK(answer.state == TraceState::complete);
  CHECK(answer.first_step == 101);
  CHECK(answer.last_step == 103);
  CHECK(answer.spans == 20);
  CHECK(answer.overwritten == 2);
  CHECK(answer.epoch == 2);
  REQUIRE((answer.nodes[1].before && answer.nodes[1].after));
  // The node's answer was read when the question was sent; the round trip is short.
  CHECK(std::abs(answer.nodes[1].before->offset_s - 101) <=
        answer.nodes[1].before->error_s + tolerance::kClockSumS);
  CHECK(std::abs(answer.nodes[1].after->offset_s - 102) <=
        answer.nodes[1].after->error_s + tolerance::kClockSumS);
  // The shortest of the round trips.
  CHECK(answer.nodes[1].before->error_s < 0.001 / TraceSession::kQuestions);
}

TEST_CASE("a node that does not answer is waited for, but not long") {
  TraceSession session = session_of({0, 5});
  session.take_questions();
  session.clock(0, {1, 2, 3});
  session.handed_in(0, result_of(), 50);
  session.handed_in(5, result_of(), 50);
  session.tick(50 + 0.9 * TraceSession::kClockLimitS);
  CHECK_FALSE(session.is_over());
  session.tick(50 + 1.1 * TraceSession::kClockLimitS);
  CHECK(session.answer().state == TraceState::complete);
  CHECK(session.answer().nodes[0].before);
  CHECK_FALSE(session.answer().nodes[0].after);
  CHECK_FALSE(session.answer().nodes[2].before);
}

TEST_CASE("what fails says why in one sentence") {
  TraceSession rank = session_of({0, 1});
  rank.handed_in(1, {.number = 7, .problem = "no space left on device"}, 1);
  CHECK(rank.answer().state == TraceState::failed);
  CHECK(rank.answer().reason == "rank 1 has no recording: no space left on device");
  CHECK(rank.take_questions().empty());
  rank.handed_in(0, result_of(), 1);
  CHECK(rank.answer().handed_in == 0);

  TraceSession late = session_of({0});
  late.handed_in(0, result_of(21, 20), 1);
  CHECK(late.answer().reason == "the run ended with step 20, before the first step to record");

  TraceSession ended = session_of({0, 1, 2});
  ended.handed_in(0, result_of(), 1);
  ended.attempt_ended("attempt 2 failed (rank 1 was killed)");
  CHECK(ended.answer().state == TraceState::failed);
  CHECK(ended.answer().reason ==
        "attempt 2 failed (rank 1 was killed) while 3 ranks recorded; nothing was kept");

  TraceSession whole = session_of({0});
  whole.handed_in(0, result_of(), 1);
  whole.attempt_ended("the run has ended");
  CHECK(whole.answer().state == TraceState::complete);

  TraceSession other = session_of({0});
  other.handed_in(0, {.number = 6, .problem = "of an order before"}, 1);
  CHECK_FALSE(other.is_over());
}

TEST_CASE("whatever comes in whatever order, it ends in one way") {
  for (const uint64_t seed : test_seeds(300)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    TraceSession session = session_of({0, 2, 3});
    double now_s = 10;
    std::vector<bool> handed_in(6, false);
    bool has_failed = false;
    for (int i = 0; i < 200 && !session.is_over(); ++i) {
      now_s += 0.02;
      const int node = int(random() % 3), rank = int(random() % 6);
      switch (random() % 12) {
        case 0: session.handed_in(rank, result_of(), now_s), handed_in[size_t(rank)] = true; break;
        case 1:
          if (random() % 20 == 0) {
            const bool asked = rank == 0 || rank == 2 || rank == 3;
            session.handed_in(rank, {.number = 7, .problem = "broken"}, now_s), has_failed |= asked;
          }
          break;
        case 2:
          if (random() % 20 == 0) session.attempt_ended("the run has ended"), has_failed = true;
          break;
        case 3: session.tick(now_s); break;
        default: session.take_questions(), session.clock(node, {now_s, now_s + 5, now_s + 0.01});
      }
    }
    const bool all = handed_in[0] && handed_in[2] && handed_in[3];
    if (session.answer().state == TraceState::complete) CHECK(all);
    if (session.answer().state == TraceState::failed) CHECK((has_failed && !session.answer().reason.empty()));
    if (session.answer().state == TraceState::complete) CHECK(session.answer().handed_in == 3);
    CHECK(session.answer().handed_in <= 3);
  }
}
