// Which rank a hang is blamed on: one that is silent, stopped or has not started.
//
// Goal: a rank is blamed for silence that its node has seen, never for one of the node or of the supervisor;
// of several the cause is named, not the first by number. Method: Supervision is pure; a hand-wound clock.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "runtime/supervise/decide/supervision.h"

using namespace trainctl;

namespace {

using Phase = Supervision::Phase;

constexpr int kSilenceRanks = 3;

Supervision::Options silence_options() {
  return {.ranks = kSilenceRanks, .target_step = 100, .heartbeat_s = 1, .step_timeout_s = 30, .start_timeout_s = 10};
}

Supervision running_ranks(const Supervision::Options& given = silence_options()) {
  Supervision s(given, 0);
  for (int rank = 0; rank < kSilenceRanks; ++rank) s.hello(rank, 100 + rank, "host", 0);
  REQUIRE(s.phase() == Phase::running);
  return s;
}

CrashRecord waited(int rank) {
  return {.rank = rank, .pid = 100 + rank, .code = ErrorCode::kPeerLost, .message = "waited for all"};
}

/// The node reports that the rank has said nothing since it was last heard.
void still_silent(Supervision& s, int rank, double now_s) {
  s.heard(rank, now_s, now_s - s.ranks()[size_t(rank)].heard_s);
}

/// Winds the clock until the attempt is over; the processes end when they are killed.
void wind_to_end(Supervision& s, double now_s) {
  const double begin_s = now_s;
  while (!s.over()) {
    REQUIRE(now_s - begin_s < 60);
    s.tick(now_s += 0.01);
    for (const Supervision::Action action : s.take_actions()) {
      if (action != Supervision::Action::kill) continue;
      s.launcher_ended(SIGTERM, now_s);
      s.all_gone(now_s);
    }
  }
}

}  // namespace

TEST_CASE("a silent rank is noticed after five heartbeats, and no sooner") {
  Supervision s = running_ranks();
  double now_s = 0;
  while (s.phase() == Phase::running) {
    now_s += 0.1;
    s.heard(0, now_s);
    still_silent(s, 1, now_s);
    s.heard(2, now_s);
    s.tick(now_s);
    REQUIRE(now_s < 6);
  }
  CHECK(now_s > 5.0);
  wind_to_end(s, now_s);
  CHECK(s.verdict().code == ErrorCode::kHang);
  CHECK(s.verdict().rank == 1);
}

TEST_CASE("when the supervisor itself slept, its ranks' silence proves nothing") {
  Supervision s = running_ranks();
  s.tick(1);
  s.tick(3600);
  CHECK(s.phase() == Phase::running);
  for (double now_s = 3600; now_s < 3604; now_s += 0.5) {
    // Their nodes slept, too, and count the silence from before.
    for (int rank = 0; rank < kSilenceRanks; ++rank) s.heard(rank, now_s, now_s - 1);
    s.tick(now_s);
  }
  CHECK(s.phase() == Phase::running);
}

TEST_CASE("a rank on which no node reports is not silent: a node or the supervisor did not run") {
  Supervision::Options o = silence_options();
  o.heartbeat_s = 0.1;
  for (const bool gave_up : {false, true}) {
    Supervision s = running_ranks(o);
    for (double now_s = 0.1; now_s < 1.8; now_s += 0.1) {
      s.tick(now_s);
      REQUIRE(s.phase() == Phase::running);
      CHECK(s.deadline_s() > now_s);  // its owner does not turn without a pause
    }
    // The first evidence is of a rank that lives, and the reports come in the turn after it.
    if (gave_up) s.lost(0, waited(0), 1.8);
    s.heard(1, 1.81, 1.7);
    s.heard(2, 1.81, 0.05);
    s.tick(1.81);
    REQUIRE(s.phase() == Phase::collecting);
    wind_to_end(s, 1.81);
    INFO(gave_up << " " << s.verdict().cause);
    CHECK(s.verdict().code == ErrorCode::kHang);
    CHECK(s.verdict().rank == 1);
    CHECK(s.verdict().cause.find(gave_up
                                     ? "rank 1 (pid 101) is silent (no heartbeats); rank 0 (pid 100): waited"
                                     : "rank 1 (pid 101) sent no heartbeat for 1.7 s") == 0);
  }
  // All live: the one that gave up is named, not one whose report is late.
  Supervision s = running_ranks(o);
  s.heard(2, 0.9);
  s.lost(1, waited(1), 0.9);
  for (const int rank : {0, 2}) s.heard(rank, 0.91, 0.02);
  wind_to_end(s, 0.91);
  INFO(s.verdict().cause);
  CHECK(s.verdict().rank == 1);
}

TEST_CASE("of several silent ranks the stopped one is named, otherwise the one that is silent for longest") {
  for (const bool is_stopped : {false, true}) {
    Supervision s = running_ranks();
    for (double now_s = 0; now_s < 10; now_s += 0.5) s.tick(now_s);
    for (const auto& [rank, silent_s] : {std::pair{0, 5.5}, {1, 5.2}, {2, 6.0}}) s.heard(rank, 10, silent_s);
    s.stopped(1, is_stopped);
    s.tick(10);
    REQUIRE(s.phase() == Phase::collecting);
    wind_to_end(s, 10);
    CHECK(s.verdict().rank == (is_stopped ? 1 : 2));
  }
}

TEST_CASE("a rank that has not started keeps the others waiting, whatever they compute") {
  for (const std::vector<int>& absent : {std::vector{2}, {0, 2}}) {
    Supervision s(silence_options(), 0);
    for (int rank = 0; rank < kSilenceRanks; ++rank)
      if (std::find(absent.begin(), absent.end(), rank) == absent.end()) s.hello(rank, 100 + rank, "host", 0);
    s.lost(1, waited(1), 1);
    wind_to_end(s, 1);
    INFO(s.verdict().cause);
    CHECK(s.verdict().code == ErrorCode::kHang);
    CHECK(s.verdict().rank == (absent.size() == 1 ? 2 : 1));
    CHECK(s.verdict().cause.find(absent.size() == 1
                                     ? "rank 2 has not started; rank 1 (pid 101): waited for all"
                                     : "ranks 0, 2 have not started; rank 1") == 0);
    CHECK(s.verdict().effect == (absent.size() == 1 ? "2 other ranks were ended" : ""));
  }
}
