// Supervision is pure, so it is tested with a hand-wound clock.
//
// Goal: whatever happens in whatever order, an attempt ends within its limits, everything left is killed, and
// the cause named is the first real one, never an effect. Method: the scenarios that were seen with real
// mpirun, all orders of a few events (exhaustive), and random histories (seeded) held to the invariants.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/supervise/decide/supervision.h"
#include "test/runtime/supervise/decide/wait_status.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using test::exited;
using test::killed;

namespace {

using Action = Supervision::Action;
using Phase = Supervision::Phase;

constexpr int kRanks = 3;

Supervision::Options options() {
  return {.ranks = kRanks, .target_step = 100, .heartbeat_s = 1, .step_timeout_s = 30, .start_timeout_s = 10};
}

Supervision running(double now_s = 0) {
  Supervision s(options(), now_s);
  for (int rank = 0; rank < kRanks; ++rank) s.hello(rank, 100 + rank, "host", now_s);
  REQUIRE(s.phase() == Phase::running);
  return s;
}

CrashRecord record(int rank, ErrorCode code, const std::string& message, const std::optional<Activity>& activity = {}) {
  return {.rank = rank, .pid = 100 + rank, .code = code, .message = message, .activity = activity};
}

Activity computing(RunPhase phase, int64_t step) { return {.phase = phase, .step = step}; }
Activity waiting(RunPhase phase, int64_t step, std::vector<int> peers) {
  Activity a{.kind = Activity::waiting, .phase = phase, .step = step, .communicator = "dp group", .operation = "sum"};
  for (const int peer : peers) a.add_peer(peer);
  return a;
}

/// Winds the clock from `now_s` until the attempt is over, with processes that end `die_after_s` after the
/// first signal. Returns the seconds it took.
double wind_to_end(Supervision& s, double now_s, double die_after_s, std::vector<Action>* actions = nullptr) {
  const double begin = now_s;
  double signalled = -1;
  bool launcher_ended = false;
  while (!s.over()) {
    REQUIRE(now_s - begin < 60);
    now_s += 0.01;
    s.tick(now_s);
    for (const Action a : s.take_actions()) {
      if (actions) actions->push_back(a);
      if (a == Action::kill && signalled < 0) signalled = now_s;
    }
    if (signalled >= 0 && now_s - signalled >= die_after_s) {
      if (!std::exchange(launcher_ended, true)) s.launcher_ended(killed(SIGTERM), now_s);
      s.all_gone(now_s);
    }
  }
  return now_s - begin;
}

}  // namespace

TEST_CASE("a run that ends well is finished; stopped only if asked and short of its target") {
  for (const bool asked : {false, true})
    for (const int64_t step : {50, 100}) {
      Supervision s = running();
      s.progressed(step, 1);
      if (asked) s.stop(StopLevel::save_and_stop, 1);
      REQUIRE(s.take_actions() == (asked ? std::vector{Action::tell_save_and_stop} : std::vector<Action>{}));
      for (int rank = 0; rank < kRanks; ++rank) s.done(rank, 2);
      for (int rank = 0; rank < kRanks; ++rank) s.lost(rank, {}, 2.1);
      s.launcher_ended(exited(0), 2.2);
      REQUIRE(s.over());
      CHECK(s.verdict().outcome == (asked && step < 100 ? Verdict::stopped : Verdict::finished));
      CHECK(s.take_actions().empty());
    }
}

TEST_CASE("a launcher that does not end after its ranks is ended, and the run is finished all the same") {
  Supervision s = running();
  s.progressed(100, 1);
  for (int rank = 0; rank < kRanks; ++rank) s.done(rank, 2);
  std::vector<Action> actions;
  const double took_s = wind_to_end(s, 2, 0.1, &actions);
  CHECK(actions == std::vector{Action::kill});
  CHECK(took_s == Approx(10.1).margin(0.1));
  CHECK(s.verdict().outcome == Verdict::finished);
}

TEST_CASE("a rank that had done its work and is killed because it does not end has done it") {
  Supervision s = running();
  s.progressed(100, 1);
  for (int rank = 0; rank < kRanks; ++rank) s.done(rank, 2);
  for (double now_s = 2; s.phase() != Phase::ending; now_s += 0.1) s.tick(now_s);
  for (int rank = 0; rank < kRanks; ++rank) s.exited(rank, killed(SIGKILL), {}, 13);
  s.all_gone(13);
  REQUIRE(s.over());
  CHECK(s.verdict().outcome == Verdict::finished);
}

TEST_CASE("a killed rank is named with its signal, as mpirun tells it, in every order of arrival") {
  // Rank 1 was killed; mpirun killed the others, said so and ended. All 24 orders of the four reports.
  std::vector<int> order = {0, 1, 2, 3};
  do {
    Supervision s = running(10);
    s.activity(1, computing(RunPhase::forward, 7), 1);
    double now_s = 10.5;
    for (const int what : order) {
      if (what < 3) {
        s.lost(what, {}, now_s);
      } else {
        s.launcher_output(
            "mpirun noticed that process rank 1 with PID 0 on node n exited on signal 9 (Killed).");
        s.launcher_ended(exited(137), now_s);
      }
      now_s += 0.001;
    }
    wind_to_end(s, now_s, 0.05);
    const Verdict v = s.verdict();
    INFO(fmt::format("order {}{}{}{}: {}", order[0], order[1], order[2], order[3], v.cause));
    CHECK(v.outcome == Verdict::failed);
    CHECK(v.rank == 1);
    CHECK(v.code == ErrorCode::kWorker);
    CHECK(v.cause.find("rank 1 (pid 101) was killed by signal 9 (SIGKILL) while: step 7: forward") == 0);
    CHECK(v.effect == "2 other ranks were ended");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a lost peer is an effect, never the cause, in every order of arrival") {
  std::vector<int> order = {0, 1, 2};
  do {
    Supervision s = running();
    for (size_t i = 0; i < order.size(); ++i) {
      const int rank = order[i];
      s.lost(rank,
             rank == 2 ? record(2, ErrorCode::kData, "token 99 is out of range")
                       : record(rank, ErrorCode::kPeerLost, "waited for rank 2"),
             5 + 0.05 * double(i));
    }
    wind_to_end(s, 5.2, 0.05);
    CHECK(s.verdict().code == ErrorCode::kData);
    CHECK(s.verdict().rank == 2);
    CHECK(s.verdict().cause == "rank 2 (pid 102): token 99 is out of range");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("of several causes the earliest is named") {
  Supervision s = running();
  s.lost(2, record(2, ErrorCode::kIo, "second disk", computing(RunPhase::saving, 3)), 5);
  s.lost(0, record(0, ErrorCode::kIo, "first disk"), 5.1);
  wind_to_end(s, 5.1, 0.05);
  CHECK(s.verdict().cause == "rank 2 (pid 102): second disk while: step 3: saving");
}

TEST_CASE("evidence that arrives after the signals were sent changes nothing") {
  Supervision s = running();
  s.lost(0, record(0, ErrorCode::kHardware, "device gone"), 5);
  CHECK(s.take_actions() == std::vector{Action::look});
  s.tick(5.04);
  REQUIRE(s.phase() == Phase::collecting);
  s.tick(5.06);  // a rank that says why it ended needs no better evidence
  REQUIRE(s.phase() == Phase::ending);
  s.lost(1, record(1, ErrorCode::kInternal, "because of our signal"), 5.07);
  wind_to_end(s, 5.07, 0.05);
  CHECK(s.verdict().code == ErrorCode::kHardware);
}

TEST_CASE("only lost peers and no rank dead is a hang, and who did not wait is named first") {
  Supervision s = running();
  s.activity(0, waiting(RunPhase::reducing_gradients, 4, {1}), 1);
  s.activity(1, computing(RunPhase::optimizer, 4), 1);
  s.activity(2, waiting(RunPhase::reducing_gradients, 4, {1}), 1);
  s.lost(0, record(0, ErrorCode::kPeerLost, "waited 60 s for rank 1", waiting(RunPhase::reducing_gradients, 4, {1})), 1.5);
  wind_to_end(s, 1.5, 0.05);
  CHECK(s.verdict().code == ErrorCode::kHang);
  CHECK(s.verdict().rank == 1);
  CHECK(s.verdict().cause ==
        "rank 1 (pid 101) keeps the others waiting while: step 4: optimizer; rank 0 (pid 100): waited 60 s for rank 1 while: "
        "step 4: reducing gradients");
}

TEST_CASE("of ranks that compute, the one for whom others wait is the suspect") {
  // Rank 0 is a step ahead and computes; rank 1 waits for rank 2, which computes, too.
  Supervision s = running();
  s.activity(0, computing(RunPhase::forward, 5), 1);
  s.activity(1, waiting(RunPhase::reducing_gradients, 4, {2}), 1);
  s.activity(2, computing(RunPhase::backward, 4), 1);
  s.lost(1, record(1, ErrorCode::kPeerLost, "waited 60 s for rank 2", waiting(RunPhase::reducing_gradients, 4, {2})), 1.5);
  wind_to_end(s, 1.5, 0.05);
  CHECK(s.verdict().rank == 2);
  CHECK(s.verdict().cause.find("rank 2 (pid 102) keeps the others waiting while: step 4: backward; ") == 0);
}

TEST_CASE("a rank that stands still is the suspect and named first, whatever all others do") {
  // Ranks 0 and 1 compute; rank 2 stands still in a wait for one of them.
  enum { stopped, silent };
  for (const int how : {stopped, silent})
    for (const bool gave_up : {false, true}) {
      Supervision s = running();
      for (int rank = 0; rank < kRanks; ++rank)
        s.activity(rank, rank == 2 ? waiting(RunPhase::reducing_gradients, 4, {1}) : computing(RunPhase::forward, 4), 1);
      double now_s = 1;
      const double end_s = gave_up ? 5 : 31;
      while (now_s < end_s && s.phase() == Phase::running) {
        now_s += 0.5;
        for (int rank = 0; rank < kRanks; ++rank)
          if (how == stopped || rank != 2 || now_s < end_s - 4)
            s.heard(rank, now_s);
          else
            s.heard(rank, now_s, now_s - s.ranks()[size_t(rank)].heard_s);
        if (how == stopped) s.stopped(2, true);
        s.tick(now_s);
      }
      if (gave_up) s.lost(0, record(0, ErrorCode::kPeerLost, "waited 4 s for rank 1"), now_s);
      wind_to_end(s, now_s, 0.05);
      const Verdict v = s.verdict();
      INFO(how << gave_up << " " << v.cause);
      CHECK(v.code == ErrorCode::kHang);
      CHECK(v.rank == 2);
      CHECK(v.cause.find(how == stopped ? "rank 2 (pid 102) is stopped (by SIGSTOP or a debugger)"
                                        : "rank 2 (pid 102) is silent (no heartbeats)") == 0);
    }
}

TEST_CASE("a stopped rank that mpirun lets go on for its end is named with what it did when it was stopped") {
  Supervision s = running();
  for (int rank = 0; rank < kRanks; ++rank) {
    s.heard(rank, 4.5);
    s.activity(rank, computing(RunPhase::forward, 4), 1);
  }
  s.stopped(2, true);
  s.lost(0, record(0, ErrorCode::kPeerLost, "waited 4 s for rank 2", waiting(RunPhase::forward, 4, {2})), 5);
  s.activity(2, computing(RunPhase::optimizer, 4), 1);
  s.stopped(2, false);
  s.lost(2, {}, 5.01);
  wind_to_end(s, 5.01, 0.05);
  CHECK(s.verdict().rank == 2);
  CHECK(s.verdict().cause.find("rank 2 (pid 102) is stopped (by SIGSTOP or a debugger) while: step 4: forward; rank 0") == 0);
}

TEST_CASE("a step that never ends is a hang; saves and events count as life") {
  Supervision s = running();
  double now_s = 0;
  const auto wind = [&](double until_s) {
    while (now_s < until_s && s.phase() == Phase::running) {
      now_s += 0.5;
      for (int rank = 0; rank < kRanks; ++rank) {
        s.heard(rank, now_s);
        s.activity(rank, rank == 1 ? computing(RunPhase::forward, 9) : waiting(RunPhase::reducing_gradients, 9, {1}), 1);
      }
      s.tick(now_s);
    }
  };
  wind(29);
  s.progressed(0, now_s);  // a save
  wind(58);
  REQUIRE(s.phase() == Phase::running);
  wind(61);
  REQUIRE(s.phase() == Phase::collecting);
  wind_to_end(s, now_s, 0.05);
  CHECK(s.verdict().code == ErrorCode::kHang);
  CHECK(s.verdict().rank == 1);
  CHECK(s.verdict().cause.find("rank 1 (pid 101) keeps the others waiting while: step 9: forward; no step was finished for 3") == 0);
}

TEST_CASE("between steps, work that moves is no hang, and work that stands still is one after a limit of its own") {
  const struct {
    RunPhase phase;
    double Supervision::Options::*limit_s;
    const char* field;
  } kCases[] = {{RunPhase::joining, &Supervision::Options::setup_timeout_s, "setup_timeout_seconds"},
                {RunPhase::building, &Supervision::Options::setup_timeout_s, "setup_timeout_seconds"},
                {RunPhase::opening_data, &Supervision::Options::data_timeout_s, "data_timeout_seconds"},
                {RunPhase::loading, &Supervision::Options::load_timeout_s, "load_timeout_seconds"},
                {RunPhase::evaluating, &Supervision::Options::evaluation_timeout_s, "evaluation_timeout_seconds"},
                {RunPhase::saving, &Supervision::Options::save_timeout_s, "save_timeout_seconds"}};
  for (const auto& test : kCases) {
    Supervision::Options o = options();
    o.step_timeout_s = 5;
    o.setup_timeout_s = o.data_timeout_s = o.load_timeout_s = o.evaluation_timeout_s = o.save_timeout_s = 3;
    o.*test.limit_s = 20;
    Supervision s(o, 0);
    for (int rank = 0; rank < kRanks; ++rank) s.hello(rank, 100 + rank, "host", 0);
    Activity slow{.phase = test.phase};
    double now_s = 0;
    const auto wind = [&](double until_s, bool moves) {
      while (now_s < until_s && s.phase() == Phase::running) {
        now_s += 0.5;
        if (moves && std::fmod(now_s, 15) == 0) ++slow.done;
        for (int rank = 0; rank < kRanks; ++rank) {
          s.heard(rank, now_s);
          s.activity(rank, rank == 1 ? slow : waiting(RunPhase::meeting, -1, {1}), now_s);
        }
        s.tick(now_s);
      }
    };
    INFO(test.field);
    wind(150, true);
    REQUIRE(s.phase() == Phase::running);
    wind(169, false);
    REQUIRE(s.phase() == Phase::running);
    wind(172, false);
    REQUIRE(s.phase() == Phase::collecting);
    wind_to_end(s, now_s, 0.05);
    CHECK(s.verdict().code == ErrorCode::kHang);
    CHECK(s.verdict().rank == 1);
    CHECK(s.verdict().cause.find("rank 1 (pid 101) keeps the others waiting while: ") == 0);
    CHECK(s.verdict().cause.find(fmt::format("; nothing moved for 20 s (fault_tolerance.{})", test.field)) != std::string::npos);
  }
}

TEST_CASE("the step's clock begins again after an evaluation") {
  Supervision s = running();  // 30 s a step
  const auto all = [&](const Activity& activity, double now_s) {
    for (int rank = 0; rank < kRanks; ++rank) {
      s.heard(rank, now_s);
      s.activity(rank, activity, now_s);
    }
    s.tick(now_s);
  };
  s.progressed(4, 1);
  for (double now_s = 1; now_s < 400; now_s += 1) all(computing(RunPhase::evaluating, 4), now_s);
  for (double now_s = 400; now_s < 429; now_s += 1) all(computing(RunPhase::forward, 5), now_s);
  CHECK(s.phase() == Phase::running);
  for (double now_s = 429; now_s < 433; now_s += 1) all(computing(RunPhase::forward, 5), now_s);
  CHECK(s.phase() >= Phase::collecting);
}

TEST_CASE("ranks that do not start in time are named") {
  Supervision s(options(), 0);
  s.hello(0, 100, "host", 0.5);
  double now_s = 0.5;
  while (s.phase() == Phase::starting) {
    now_s += 0.5;
    s.heard(0, now_s);
    s.tick(now_s);
  }
  CHECK(now_s == Approx(10.5));
  wind_to_end(s, now_s, 0.05);
  CHECK(s.verdict().cause.find("ranks 1, 2 did not start within 10 s") == 0);
  CHECK(s.verdict().before_first_step);
}

TEST_CASE("mpirun that fails before the ranks exist is quoted") {
  Supervision s(options(), 0);
  s.launcher_output("--------\nThere are not enough slots available\n--------\n");
  s.launcher_ended(exited(1), 0.2);
  wind_to_end(s, 0.2, 0.0);
  CHECK(s.verdict().code == ErrorCode::kLauncher);
  CHECK(s.verdict().cause ==
        "mpirun ended with status 1 before every rank had started: There are not enough slots available");
}

TEST_CASE("mpirun that ends all ranks and itself without a word was ended by a signal") {
  Supervision s = running();
  s.lost(0, {}, 3);
  for (const int rank : {1, 2}) s.lost(rank, {}, 3.01);
  s.launcher_ended(exited(1), 3.05);
  wind_to_end(s, 3.05, 0.0);
  CHECK(s.verdict().code == ErrorCode::kLauncher);
  CHECK(s.verdict().rank == -1);
  CHECK(s.verdict().cause.find("mpirun ended every rank and itself without a word, as it does on SIGTERM") == 0);
}

TEST_CASE("mpirun that was killed is the cause, not the ranks that followed it") {
  Supervision s = running();
  s.launcher_ended(killed(SIGKILL), 3);
  for (int rank = 0; rank < kRanks; ++rank) s.lost(rank, {}, 3.01);
  wind_to_end(s, 3.01, 0.0);
  CHECK(s.verdict().cause == "mpirun was killed by signal 9 (SIGKILL)");
  CHECK(s.verdict().code == ErrorCode::kLauncher);
}

TEST_CASE("asked to stop now: nothing is waited for") {
  Supervision s = running();
  s.stop(StopLevel::save_and_stop, 1);
  s.stop(StopLevel::save_and_stop, 1.1);  // the same again is no second request
  CHECK(s.take_actions() == std::vector{Action::tell_save_and_stop});
  s.stop(StopLevel::now, 1.2);
  CHECK(s.take_actions() == std::vector{Action::kill});
  wind_to_end(s, 1.2, 0.05);
  CHECK(s.verdict().outcome == Verdict::aborted);
}

TEST_CASE("whatever happens, an attempt ends: at most 10 s after the first evidence, and everything left is killed once") {
  // 1.5 s for the launcher to say who died, 8 s for what survives SIGKILL: an agent needs 5 s to report that.
  const double limit_s = options().launcher_evidence_s + options().kill_limit_s;
  CHECK(limit_s < 10);
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return int(random() % uint32_t(n)); };
  for (int history = 0; history < 3000; ++history) {
    Supervision s(options(), 0);
    double now_s = 0, evidence_s = -1;
    std::vector<Action> actions;
    bool launcher_alive = true;
    const bool stubborn = pick(4) == 0;  // never dies, whatever is sent
    while (!s.over() && now_s < 200) {
      now_s += 0.001 * pick(400);
      const int rank = pick(kRanks);
      const RankView::Phase phase = s.ranks()[size_t(rank)].phase;
      switch (pick(12)) {
        case 0:
          if (phase == RankView::absent && launcher_alive) s.hello(rank, 100 + rank, "h", now_s);
          break;
        case 1: s.progressed(pick(120), now_s); break;
        case 2:
          if (phase == RankView::present) s.done(rank, now_s);
          break;
        case 3:
          if (phase == RankView::present && pick(10) == 0) s.lost(rank, {}, now_s);
          break;
        case 4:
          if (phase == RankView::present && pick(10) == 0)
            s.lost(rank, record(rank, ErrorCode(pick(14)), "m"), now_s);
          break;
        case 5:
          if (pick(50) == 0) s.stop(StopLevel(1 + pick(2)), now_s);
          break;
        case 6:
          if (launcher_alive && pick(30) == 0) {
            launcher_alive = false;
            s.launcher_ended(pick(2) ? exited(pick(3)) : killed(SIGKILL), now_s);
          }
          break;
        default:
          for (int r = 0; r < kRanks; ++r)
            if (s.ranks()[size_t(r)].phase == RankView::present) {
              const double since_s = s.ranks()[size_t(r)].heard_s;
              s.heard(r, now_s, pick(20) ? 0 : now_s - since_s);
            }
      }
      s.tick(now_s);
      // A deadline that has passed would make its owner poll without a pause.
      if (s.phase() >= Phase::collecting) CHECK(s.deadline_s() > now_s - test::tolerance::kClockSumS);
      for (const Action a : s.take_actions()) actions.push_back(a);
      if (evidence_s < 0 && s.phase() > Phase::finishing) evidence_s = now_s;
      if (s.phase() == Phase::ending && !stubborn && pick(3) == 0) s.all_gone(now_s);
    }
    REQUIRE(s.over());
    const Verdict v = s.verdict();
    if (v.outcome == Verdict::failed) {
      CHECK_FALSE(v.cause.empty());
      CHECK(exit_status(v.code) != 0);
      if (evidence_s >= 0) CHECK(now_s - evidence_s < limit_s + 3 * 0.4);  // this test's clock jumps by up to 0.4 s
      // Every failed attempt looks once more at what ranks do and then kills what may be left.
      CHECK(std::count(actions.begin(), actions.end(), Action::kill) == 1);
      const auto look = std::find(actions.begin(), actions.end(), Action::look);
      const auto kill = std::find(actions.begin(), actions.end(), Action::kill);
      CHECK((look != actions.end() && look < kill));
    }
  }
}

TEST_CASE("a restart is tried for what passes, not for what stays wrong") {
  for (const ErrorCode code : {ErrorCode::kWorker, ErrorCode::kPeerLost, ErrorCode::kHang, ErrorCode::kIo,
                               ErrorCode::kHardware, ErrorCode::kLauncher})
    CHECK(worth_restarting(code));
  for (const ErrorCode code :
       {ErrorCode::kInternal, ErrorCode::kUsage, ErrorCode::kSpec, ErrorCode::kPlan, ErrorCode::kPreflight,
        ErrorCode::kData, ErrorCode::kCheckpoint, ErrorCode::kDiverged, ErrorCode::kStopped})
    CHECK_FALSE(worth_restarting(code));
  CHECK(worth_restarting(ErrorCode::kPlan, true));  // it had fitted
}
