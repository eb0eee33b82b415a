// Supervision of ranks on several nodes, started by their agents or by mpirun; pure, so with a hand-wound
// clock.
//
// Goal: a lost node is the cause of what its loss does to ranks elsewhere, in whatever order the news arrive;
// a rank whose parent is an agent is named with the signal or status of its end; a run that has done its work
// is not failed by a node that goes afterwards. Method: all orders of a few events (exhaustive), then random
// histories (seeded) held to the invariants.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "runtime/supervise/decide/supervision.h"
#include "test/runtime/supervise/decide/wait_status.h"
#include "test/support/seed.h"

using namespace trainctl;
using test::exited;
using test::killed;

namespace {

using Action = Supervision::Action;
using Phase = Supervision::Phase;

constexpr int kNodesRanks = 5;

/// Ranks 0 and 1 on a, 2 and 3 on b, 4 on c.
Supervision::Options nodes_options(bool launcher = false) {
  return {.ranks = kNodesRanks,
          .nodes = {{"a", 0, 2}, {"b", 2, 2}, {"c", 4, 1}},
          .launcher = launcher,
          .target_step = 100,
          .heartbeat_s = 1,
          .step_timeout_s = 30,
          .start_timeout_s = 10};
}

Supervision nodes_running(bool launcher = false) {
  Supervision s(nodes_options(launcher), 0);
  for (int rank = 0; rank < kNodesRanks; ++rank) s.hello(rank, 100 + rank, "h", 0);
  REQUIRE(s.phase() == Phase::running);
  return s;
}

CrashRecord crash_of(int rank, ErrorCode code, const std::string& message) {
  return {.rank = rank, .pid = 100 + rank, .code = code, .message = message};
}

/// Winds the clock until the attempt is over; what was killed is gone after 50 ms. The seconds it took.
double wind_to_over(Supervision& s, double now_s, std::vector<Action>* actions = nullptr) {
  const double begin_s = now_s;
  double killed_s = -1;
  while (!s.over() && now_s < begin_s + 60) {
    now_s += 0.01;
    s.tick(now_s);
    for (const Action action : s.take_actions()) {
      if (actions) actions->push_back(action);
      if (action == Action::kill) killed_s = now_s;
    }
    if (killed_s >= 0 && now_s >= killed_s + 0.05) s.all_gone(now_s);
  }
  REQUIRE(s.over());
  return now_s - begin_s;
}

/// Calls `run` with every order of 0 .. n - 1.
template <typename Run>
void in_every_order(int n, Run run) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  do run(order);
  while (std::next_permutation(order.begin(), order.end()));
}

std::string text_of(const std::vector<int>& order) {
  std::string text;
  for (const int i : order) text += fmt::format("{} ", i);
  return text;
}

}  // namespace

TEST_CASE(
    "a lost node is the cause, whatever it does to ranks elsewhere and in whatever order that arrives") {
  in_every_order(4, [](const std::vector<int>& order) {
    for (const bool launcher : {false, true}) {
      Supervision s = nodes_running(launcher);
      double now_s = 5;
      for (const int event : order) {
        if (event == 0) s.node_lost(1, "silent for 2.0 s", now_s);
        if (event == 1) s.lost(0, crash_of(0, ErrorCode::kPeerLost, "waited 60 s for rank 2"), now_s);
        if (event == 2) s.lost(4, {}, now_s);
        if (event == 3 && launcher) s.launcher_ended(exited(1), now_s);
        if (event == 3 && !launcher) s.exited(1, killed(SIGABRT), {}, now_s);
        now_s += 0.001;
      }
      std::vector<Action> actions;
      const double took_s = wind_to_over(s, now_s, &actions);
      const Verdict v = s.verdict();
      INFO(launcher << " " << text_of(order) << v.cause);
      CHECK(v.outcome == Verdict::failed);
      CHECK(v.code == ErrorCode::kHardware);
      CHECK(worth_restarting(v.code));
      CHECK(v.rank == -1);
      CHECK(v.cause == "b was lost with ranks 2-3: silent for 2.0 s");
      CHECK(v.effect == "5 other ranks were ended");
      CHECK(v.lost_nodes == std::vector<int>{1});
      CHECK(actions == std::vector{Action::look, Action::kill});
      CHECK(took_s < 0.2);  // of the attempt's clock: a lost node needs no better evidence
    }
  });
}

TEST_CASE("a node with one rank is named with it, and several lost nodes in the order of their loss") {
  Supervision s = nodes_running();
  s.node_lost(2, "the connection was closed", 5);
  s.node_lost(0, "silent for 2.1 s", 5.01);
  wind_to_over(s, 5.01);
  CHECK(s.verdict().cause == "c was lost with rank 4: the connection was closed");
  CHECK(s.verdict().lost_nodes == std::vector<int>{2, 0});
  // A node that goes while everything is being killed counts for the next attempt, too.
  Supervision late = nodes_running();
  late.exited(3, killed(SIGKILL), {}, 5);
  late.tick(5.06);
  REQUIRE(late.phase() == Phase::ending);
  late.node_lost(0, "silent for 2.0 s", 5.07);
  wind_to_over(late, 5.07);
  CHECK(late.verdict().rank == 3);
  CHECK(late.verdict().lost_nodes == std::vector<int>{0});
}

TEST_CASE("a node that was never there fails the attempt before its first step") {
  Supervision s(nodes_options(), 0);
  for (const int rank : {0, 1, 4}) s.hello(rank, 100 + rank, "h", 0.5);
  s.node_lost(1, "it is not connected", 0.6);
  wind_to_over(s, 0.6);
  CHECK(s.verdict().cause == "b was lost with ranks 2-3: it is not connected");
  CHECK(s.verdict().before_first_step);
  CHECK(s.verdict().effect == "3 other ranks were ended");
}

TEST_CASE("a node that left a supervisor which stood still is no broken hardware") {
  for (const bool by_own_pause : {false, true}) {
    Supervision s = nodes_running();
    s.node_lost(1, "it did not come back", 5, by_own_pause);
    wind_to_over(s, 5);
    CHECK(s.verdict().code == (by_own_pause ? ErrorCode::kLauncher : ErrorCode::kHardware));
  }
}

TEST_CASE("a node that cannot start its ranks is quoted, and no mpirun is blamed where there is none") {
  Supervision s(nodes_options(), 0);
  s.launcher_output("b: cannot make the scratch folder /tmp/x: No space left on device\n");
  s.launcher_ended(exited(1), 0.1, 1);
  wind_to_over(s, 0.1);
  CHECK(s.verdict().code == ErrorCode::kLauncher);
  CHECK(s.verdict().start_node == 1);
  CHECK(s.verdict().cause ==
        "the start of the ranks ended with status 1 before every rank had started: b: cannot make the scratch "
        "folder /tmp/x: No space left on device");
}

TEST_CASE("a rank that says why it ended explains more than the loss of its node") {
  in_every_order(2, [](const std::vector<int>& order) {
    Supervision s = nodes_running();
    for (const int event : order) {
      if (event == 0) s.node_lost(1, "silent for 2.0 s", 5);
      if (event == 1)
        s.exited(2, exited(8), crash_of(2, ErrorCode::kHardware, "the GPU has fallen off the bus"), 5);
    }
    wind_to_over(s, 5);
    INFO(text_of(order));
    CHECK(s.verdict().rank == 2);
    CHECK(s.verdict().cause == "rank 2 (pid 102 on b): the GPU has fallen off the bus");
    CHECK(s.verdict().lost_nodes == std::vector<int>{1});
  });
}

TEST_CASE("a killed rank is named by its agent with node and signal, in every order of what follows") {
  // Rank 3 was killed: its connection is lost and its parent knows; rank 0 gives up on it, rank 4 ends of
  // that.
  in_every_order(4, [](const std::vector<int>& order) {
    Supervision s = nodes_running();
    s.activity(3, Activity{.phase = RunPhase::backward, .step = 9}, 1);
    double now_s = 5;
    for (const int event : order) {
      if (event == 0) s.lost(3, {}, now_s);
      if (event == 1) s.exited(3, killed(SIGKILL), {}, now_s);
      if (event == 2) s.lost(0, crash_of(0, ErrorCode::kPeerLost, "waited 60 s for rank 3"), now_s);
      if (event == 3) s.exited(4, exited(1), {}, now_s);
      now_s += 0.001;
    }
    wind_to_over(s, now_s);
    const Verdict v = s.verdict();
    INFO(text_of(order) << v.cause);
    CHECK(v.rank == 3);
    CHECK(v.code == ErrorCode::kWorker);
    CHECK(v.cause.find("rank 3 (pid 103 on b) was killed by signal 9 (SIGKILL) while: step 9: backward") ==
          0);
    CHECK(v.cause.find("ran out of memory") != std::string::npos);
    CHECK(v.lost_nodes.empty());
  });
}

TEST_CASE("without mpirun the end of a rank's connection waits for its agent to say how it ended") {
  // Also where it is the only rank, or the only one that has started.
  for (const bool alone : {false, true}) {
    Supervision::Options o = nodes_options();
    if (alone) o.ranks = 1, o.nodes = {{"a", 0, 1}};
    Supervision s(o, 0);
    s.hello(0, 100, "h", 1);
    s.lost(0, {}, 2);
    s.tick(2.01);
    s.exited(0, killed(SIGSEGV), {}, 2.02);
    wind_to_over(s, 2.02);
    INFO(alone << " " << s.verdict().cause);
    CHECK(s.verdict().cause.find("was killed by SIGSEGV (invalid memory access)") != std::string::npos);
  }
  // Where the agent says nothing, the loss of the connection is all there is, soon.
  Supervision mute = nodes_running();
  mute.lost(0, {}, 2);
  CHECK(wind_to_over(mute, 2) < 0.5);
  CHECK(mute.verdict().cause == "rank 0 (pid 100 on a) ended without a word");
}

TEST_CASE("a rank that exits is named with its status; one that has done its work is not missed") {
  struct Case {
    bool done;
    int status;
    std::optional<CrashRecord> record;
    const char* cause;  ///< "": no failure
  };
  const Case cases[] = {
      {false, exited(3), {}, "rank 1 (pid 101 on a) exited with status 3"},
      {false, exited(0), {}, "rank 1 (pid 101 on a) exited with status 0"},
      {false, exited(6), crash_of(1, ErrorCode::kData, "token 99"), "rank 1 (pid 101 on a): token 99"},
      {false, killed(SIGABRT), crash_of(1, ErrorCode::kInternal, "a check failed"),
       "rank 1 (pid 101 on a): a check failed"},
      {true, exited(0), {}, ""},
      {true, killed(SIGSEGV), {}, "rank 1 (pid 101 on a) was killed by SIGSEGV (invalid memory access)"},
  };
  for (const Case& c : cases) {
    Supervision s = nodes_running();
    if (c.done) s.done(1, 2);
    s.exited(1, c.status, c.record, 3);
    INFO(c.cause);
    if (!*c.cause) {
      s.tick(3.1);
      CHECK(s.phase() == Phase::running);
      continue;
    }
    wind_to_over(s, 3);
    CHECK(s.verdict().outcome == Verdict::failed);
    CHECK(s.verdict().rank == 1);
    CHECK(s.verdict().cause.find(c.cause) == 0);
  }
}

TEST_CASE("without mpirun a run is over when all its ranks have done their work and ended") {
  for (const bool asked : {false, true}) {
    Supervision s = nodes_running();
    s.progressed(asked ? 50 : 100, 1);
    if (asked) s.stop(StopLevel::save_and_stop, 1);
    s.take_actions();
    // Some end before others are done.
    for (int rank = 0; rank < kNodesRanks; ++rank) {
      s.done(rank, 2);
      if (rank % 2) s.exited(rank, exited(0), {}, 2.01);
    }
    CHECK(s.phase() == Phase::finishing);
    for (int rank = 0; rank < kNodesRanks; ++rank)
      if (rank % 2 == 0) {
        REQUIRE_FALSE(s.over());
        s.lost(rank, {}, 2.2);  // its connection ends before the process does
        s.exited(rank, exited(0), {}, 2.2);
      }
    REQUIRE(s.over());
    CHECK(s.verdict().outcome == (asked ? Verdict::stopped : Verdict::finished));
    CHECK(s.take_actions().empty());
  }
}

TEST_CASE("a node that goes after its ranks have done their work fails nothing") {
  for (const bool launcher : {false, true})
    for (const bool all_done : {false, true}) {
      Supervision s = nodes_running(launcher);
      s.progressed(100, 1);
      for (int rank = 0; rank < kNodesRanks; ++rank)
        if (all_done || rank >= 2) s.done(rank, 2);
      s.node_lost(1, "the connection was closed", 2.1);
      for (int rank = 0; rank < 2; ++rank) s.done(rank, 2.2);
      CHECK(s.phase() == Phase::finishing);
      wind_to_over(s, 2.2);  // what does not report its end is ended after a while
      CHECK(s.verdict().outcome == Verdict::finished);
      CHECK(s.verdict().lost_nodes == std::vector<int>{1});
    }
}

TEST_CASE("a supervisor that attaches hears of ranks in any order, and runs once it knows of all") {
  // Ranks that were done before it came are not connected any more.
  in_every_order(kNodesRanks, [](const std::vector<int>& order) {
    Supervision s(nodes_options(), 0);
    for (const int rank : order) {
      CHECK(s.phase() == Phase::starting);
      if (rank % 2)
        s.done(rank, 1);
      else
        s.hello(rank, 100 + rank, "h", 1);
    }
    INFO(text_of(order));
    CHECK(s.phase() == Phase::running);
    for (double now_s = 1; now_s < 20; now_s += 0.5) {
      for (int rank = 0; rank < kNodesRanks; rank += 2) s.heard(rank, now_s);
      s.tick(now_s);
    }
    CHECK(s.phase() == Phase::running);
    for (int rank = 0; rank < kNodesRanks; rank += 2) s.done(rank, 20);
    CHECK(s.phase() == Phase::finishing);
  });
}

TEST_CASE("the suspect of a hang is named with its node") {
  Supervision s = nodes_running();
  s.stopped(3, true);
  double now_s = 0;
  while (s.phase() == Phase::running && now_s < 60) {
    now_s += 0.5;
    for (int rank = 0; rank < kNodesRanks; ++rank)
      s.heard(rank, now_s, rank == 3 ? now_s : 0);  // it said nothing since the start
    s.tick(now_s);
  }
  wind_to_over(s, now_s);
  CHECK(s.verdict().code == ErrorCode::kHang);
  CHECK(s.verdict().cause.find("rank 3 (pid 103 on b) is stopped (by SIGSTOP or a debugger)") == 0);
}

TEST_CASE(
    "whatever happens to nodes and ranks, an attempt ends soon after the first evidence and blames soundly") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return int(random() % uint32_t(n)); };
  int by_node = 0, by_rank = 0, finished = 0;
  for (int history = 0; history < 5000; ++history) {
    const bool launcher = pick(3) == 0, stubborn = pick(5) == 0;
    Supervision s(nodes_options(launcher), 0);
    double now_s = 0, evidence_s = -1;
    bool launcher_alive = launcher;
    std::vector<int> lost;
    std::vector<bool> gone(kNodesRanks, false), node_gone(3, false);
    int kills = 0;
    while (!s.over() && now_s < 300) {
      now_s += 0.001 * pick(300);
      const int rank = pick(kNodesRanks), node = rank < 2 ? 0 : rank < 4 ? 1 : 2;
      const RankView::Phase phase = s.ranks()[size_t(rank)].phase;
      const bool here = !gone[size_t(rank)] && !node_gone[size_t(node)];
      switch (pick(14)) {
        case 0:
        case 1:
          if (here && phase == RankView::absent) s.hello(rank, 100 + rank, "h", now_s);
          break;
        case 2: s.progressed(pick(120), now_s); break;
        case 3:
          if (here && phase == RankView::present) s.done(rank, now_s);
          break;
        case 4:
          if (here && phase == RankView::present && pick(20) == 0) s.lost(rank, {}, now_s);
          break;
        case 5:
          if (here && phase != RankView::absent && pick(10) == 0) {
            gone[size_t(rank)] = true;
            const bool done = phase == RankView::done;
            if (launcher)
              s.lost(rank, {}, now_s);
            else
              s.exited(rank, done && pick(10) ? 0 : pick(2) ? exited(pick(4)) : killed(SIGKILL), {}, now_s);
          }
          break;
        case 6:
          if (here && phase == RankView::present && pick(20) == 0)
            s.lost(rank, crash_of(rank, ErrorCode(pick(14)), "m"), now_s);
          break;
        case 7:
          if (!node_gone[size_t(node)] && pick(25) == 0) {
            node_gone[size_t(node)] = true;
            lost.push_back(node);
            s.node_lost(node, "silent", now_s);
          }
          break;
        case 8:
          if (launcher_alive && pick(30) == 0) {
            launcher_alive = false;
            s.launcher_ended(pick(2) ? exited(pick(3)) : killed(SIGKILL), now_s);
          }
          break;
        case 9:
          if (pick(80) == 0) s.stop(StopLevel(1 + pick(2)), now_s);
          break;
        default:
          for (int r = 0; r < kNodesRanks; ++r)
            if (s.ranks()[size_t(r)].phase == RankView::present) s.heard(r, now_s);
      }
      s.tick(now_s);
      for (const Action a : s.take_actions()) kills += a == Action::kill;
      if (evidence_s < 0 && s.phase() > Phase::finishing) evidence_s = now_s;
      if (s.phase() == Phase::ending && !stubborn && pick(3) == 0) s.all_gone(now_s);
    }
    REQUIRE(s.over());
    const Verdict v = s.verdict();
    CHECK(v.lost_nodes == lost);
    finished += v.outcome == Verdict::finished;
    if (v.outcome != Verdict::failed) continue;
    CHECK_FALSE(v.cause.empty());
    CHECK(kills == 1);
    CHECK(now_s - evidence_s < 1.5 + 8 + 3 * 0.3);
    CHECK(v.rank >= -1);
    CHECK(v.rank < kNodesRanks);
    by_rank += v.rank >= 0;
    // Who is blamed for a lost node is a node that was lost.
    for (const int node : {0, 1, 2})
      if (v.cause.starts_with(nodes_options().nodes[size_t(node)].name + " was lost")) {
        ++by_node;
        CHECK(std::count(lost.begin(), lost.end(), node) == 1);
        CHECK(v.code == ErrorCode::kHardware);
      }
  }
  CHECK(by_node > 200);
  CHECK(by_rank > 200);
  CHECK(finished > 20);
}
