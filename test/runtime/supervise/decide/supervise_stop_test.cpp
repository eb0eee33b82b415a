// Goal: a stop has one limit, from the request to the end of all ranks, whatever the ranks are in; what was
//       given up is named; the attempt before a regroup has none; and the end of an attempt waits for a file
//       system only as long as that is worth it.
// Method: Supervision alone, by a clock that the test winds.
#include <catch2/catch.hpp>

#include "runtime/supervise/decide/supervision.h"

using namespace trainctl;

namespace {

using Action = Supervision::Action;
using Phase = Supervision::Phase;

constexpr int kStopRanks = 2;

Supervision running_to_stop() {
  Supervision s({.ranks = kStopRanks, .target_step = 100, .step_timeout_s = 1000, .exit_timeout_s = 60}, 0);
  for (int rank = 0; rank < kStopRanks; ++rank) s.hello(rank, 100 + rank, "host", 0);
  return s;
}

/// Turns each half second, with ranks that live, until `until_s` or the end of all; returns when the kill was
/// ordered, -1: it was not.
double wind_to_kill(Supervision& s, double from_s, double until_s) {
  double killed_s = -1;
  for (double now_s = from_s; now_s < until_s && !s.over(); now_s += 0.5) {
    for (int rank = 0; rank < kStopRanks; ++rank) s.heard(rank, now_s);
    s.tick(now_s);
    for (const Action action : s.take_actions())
      if (action == Action::kill) killed_s = now_s;
    if (killed_s >= 0) s.all_gone(now_s);
  }
  return killed_s;
}

}  // namespace

TEST_CASE("a stop has one limit, of which a part may have passed before the attempt") {
  for (const auto& [left_s, ends_s] : {std::pair{1e9, 65.0}, {60.0, 65.0}, {20.0, 25.0}, {-3.0, 5.0}}) {
    Supervision s = running_to_stop();
    s.stop(StopLevel::save_and_stop, 5, left_s);
    s.stop(StopLevel::save_and_stop, 6, left_s);  // said in each turn
    CHECK(s.stop_until_s() == std::min(ends_s, 5 + left_s));
    CHECK(s.deadline_s() <= ends_s);
    s.activity(0, Activity{.phase = RunPhase::saving, .step = 7}, 5);
    s.activity(
        1,
        Activity{
            .kind = Activity::waiting, .phase = RunPhase::saving, .step = 7, .communicator = kSupervisorWait},
        5);
    CHECK(wind_to_kill(s, 5, 1000) == ends_s);
    const Verdict v = s.verdict();
    CHECK(v.outcome == Verdict::stopped);
    CHECK(v.gave_up ==
          "the stop did not end within 60 s (checkpoint.exit_timeout_seconds); rank 0 (pid 100) keeps the "
          "others waiting while: step 7: saving");
  }
}

TEST_CASE("a stop that ends in time gives nothing up; one of a start does") {
  Supervision s = running_to_stop();
  s.stop(StopLevel::save_and_stop, 5);
  for (int rank = 0; rank < kStopRanks; ++rank) s.done(rank, 64.9);
  s.launcher_ended(0, 65.2);
  CHECK(s.verdict().outcome == Verdict::stopped);
  CHECK(s.verdict().gave_up.empty());
  Supervision starts({.ranks = kStopRanks, .start_timeout_s = 500, .exit_timeout_s = 60}, 0);
  starts.stop(StopLevel::save_and_stop, 5);
  CHECK(wind_to_kill(starts, 5, 1000) == 65);
  CHECK(starts.verdict().gave_up ==
        "the stop did not end within 60 s (checkpoint.exit_timeout_seconds); its ranks had not all started");
}

TEST_CASE("a regroup has no limit until a person wants the run to stop") {
  Supervision s = running_to_stop();
  s.regroup(5);
  CHECK(s.take_actions() == std::vector{Action::tell_save_and_stop});
  CHECK(wind_to_kill(s, 5, 500) == -1);
  s.stop(StopLevel::save_and_stop, 500);
  CHECK(wind_to_kill(s, 500, 1000) == 560);
}

TEST_CASE("the time in which the supervisor itself was stopped is not the ranks'") {
  Supervision s = running_to_stop();
  s.stop(StopLevel::save_and_stop, 5);
  CHECK(wind_to_kill(s, 5, 10) == -1);
  CHECK(wind_to_kill(s, 1009.5, 2000) == 1065);
}

TEST_CASE("the end of an attempt waits for a file system as long as that is worth it") {
  const auto ended = [](bool failed, StopLevel level) {
    Supervision s = running_to_stop();
    if (level != StopLevel::none) s.stop(level, 5);
    if (failed) s.lost(0, CrashRecord{.rank = 0, .code = ErrorCode::kData, .message = "x"}, 6);
    for (int rank = 0; rank < kStopRanks && !failed; ++rank) s.done(rank, 6);
    if (!failed) s.launcher_ended(0, 6);
    wind_to_kill(s, 6, 30);
    REQUIRE(s.over());
    return s;
  };
  // A run that is over: as long as it may take to end.
  const Supervision whole = ended(false, StopLevel::none);
  CHECK((whole.waits_for_publishing(59, 1000) && !whole.waits_for_publishing(60, 1000)));
  // Recovery waits for it.
  const Supervision failed = ended(true, StopLevel::none);
  CHECK((failed.waits_for_publishing(9, 1000) && !failed.waits_for_publishing(10, 1000)));
  // A stop: until its time is over, also if the disk is silent.
  const Supervision stopped = ended(false, StopLevel::save_and_stop);
  CHECK((stopped.waits_for_publishing(1e9, 64) && !stopped.waits_for_publishing(0, 65)));
  const Supervision aborted = ended(true, StopLevel::now);
  CHECK_FALSE(aborted.waits_for_publishing(0, 6));
}
