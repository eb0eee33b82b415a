// What the agent of a node does next, given what it has heard.
//
// Goal: an agent reaches its supervisor again and again, obeys no old epoch, and ends everything once it has
// heard nothing for the grace: never later than grace and one tick, never earlier. Method: each transition
// with a hand-wound clock, then random histories (seeded) held to a second, naive statement of the rules.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>

#include "runtime/run/agent/agent_state.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;

namespace {

using Action = AgentState::Action;
using Phase = AgentState::Phase;
using Actions = std::vector<Action>;

constexpr AgentState::Options kTestLimits = {.silence_s = 2, .grace_s = 30, .dial_s = 0.1, .beat_s = 0.25};

/// Ticks every 10 ms until `until_s`, as an agent that is served in time does; what it wants to do meanwhile.
Actions wind(AgentState& state, double& now_s, double until_s) {
  Actions all;
  while (now_s + 0.01 <= until_s + test::tolerance::kClockSumS) {
    now_s += 0.01;
    state.tick(now_s);
    for (const Action action : state.take_actions()) all.push_back(action);
  }
  return all;
}

Actions tick(AgentState& state, double now_s) {
  state.tick(now_s);
  return state.take_actions();
}

AgentState attached_at(double now_s, const AgentState::Options& limits = kTestLimits) {
  AgentState state(limits, now_s);
  state.connected(now_s);
  state.welcomed(limits, now_s);
  REQUIRE(state.phase() == Phase::attached);
  REQUIRE(state.take_actions() == Actions{Action::greet});
  return state;
}

int64_t count(const Actions& actions, Action action) {
  return std::count(actions.begin(), actions.end(), action);
}

}  // namespace

TEST_CASE("an agent dials at once and then at intervals, and greets whoever answers") {
  AgentState state(kTestLimits, 100);
  CHECK(state.phase() == Phase::dialing);
  CHECK(tick(state, 100.001) == Actions{Action::dial});
  CHECK(tick(state, 100.05).empty());
  state.disconnected(100.05);  // the attempt failed
  CHECK(tick(state, 100.11) == Actions{Action::dial});
  state.connected(100.2);
  CHECK(state.phase() == Phase::greeting);
  CHECK(state.take_actions() == Actions{Action::greet});
  CHECK(tick(state, 100.5).empty());
  state.connected(100.6);  // nobody dialed
  CHECK(state.take_actions().empty());
}

TEST_CASE("a greeting without an answer, refused or closed, ends in another dial") {
  for (const bool closed : {false, true}) {
    AgentState state(kTestLimits, 0);
    double now_s = 0;
    state.connected(0);
    state.take_actions();
    if (closed) {
      state.disconnected(now_s);
      CHECK(state.phase() == Phase::dialing);
      CHECK(wind(state, now_s, 0.09).empty());  // not at once: what refuses goes on refusing
      CHECK(wind(state, now_s, 0.11) == Actions{Action::dial});
    } else {
      CHECK(wind(state, now_s, 1.99).empty());
      CHECK(wind(state, now_s, 2.05) == Actions{Action::drop});
      CHECK(wind(state, now_s, 2.2) == Actions{Action::dial});
    }
  }
}

TEST_CASE("a welcome brings the limits, and heartbeats begin at once") {
  AgentState state(kTestLimits, 0);
  state.welcomed({.silence_s = 9, .grace_s = 9, .beat_s = 9}, 0);  // before the connection: nonsense
  CHECK(state.phase() == Phase::dialing);
  state.connected(0);
  state.take_actions();
  state.welcomed({.silence_s = 1, .grace_s = 5, .beat_s = 0.5}, 0.1);
  CHECK(state.phase() == Phase::attached);
  double now_s = 0.1;
  CHECK(tick(state, now_s) == Actions{Action::beat});
  state.heard(1);
  CHECK(wind(state, now_s, 1.75) == Actions(3, Action::beat));
  CHECK(wind(state, now_s, 2.05) == Actions{Action::drop});  // silent for the new second
  CHECK(state.phase() == Phase::dialing);
  const Actions rest = wind(state, now_s, 6.05);
  CHECK(state.phase() == Phase::over);  // five seconds after the last word, not thirty
  CHECK(rest.back() == Action::leave);
  CHECK(state.reason().find("no word from a supervisor for 5.0") == 0);
}

TEST_CASE("a lost supervisor is dialed, and found again with the epoch that runs here") {
  for (const bool silent : {false, true}) {
    AgentState state = attached_at(0);
    double now_s = 0;
    REQUIRE(state.accept(7));
    state.running(7);
    const double lost_s = silent ? 2.05 : 1;
    Actions actions = wind(state, now_s, lost_s);
    if (silent) CHECK(actions.back() == Action::drop);
    if (!silent) state.disconnected(now_s);
    CHECK(state.phase() == Phase::dialing);
    actions = wind(state, now_s, lost_s + 1);
    CHECK(count(actions, Action::dial) >= 8);
    CHECK(count(actions, Action::dial) == int64_t(actions.size()));
    state.connected(now_s);
    CHECK(state.take_actions() == Actions{Action::greet});
    state.welcomed(kTestLimits, now_s);
    CHECK(state.phase() == Phase::attached);
    CHECK(state.epoch() == 7);  // nothing was killed; a welcome that keeps nothing is the agent's own affair
    CHECK(state.newest_epoch() == 7);
    CHECK(state.reason().empty());
  }
}

TEST_CASE("what a stranger says is no word of a supervisor") {
  AgentState state = attached_at(0);
  double now_s = 0;
  state.disconnected(now_s);
  Actions actions;
  while (now_s < 29.3) {
    // It accepts the connection and talks without a welcome.
    state.connected(now_s);
    state.heard(now_s);
    for (const Action action : wind(state, now_s, now_s + 0.5)) actions.push_back(action);
    state.disconnected(now_s);
  }
  CHECK(count(actions, Action::kill_all) == 0);
  CHECK(count(wind(state, now_s, 30.1), Action::kill_all) == 1);
}

TEST_CASE("the end by order: everything is killed, then the agent leaves") {
  for (const bool attached : {false, true}) {
    AgentState idle = attached ? attached_at(0) : AgentState(kTestLimits, 0);
    idle.ended_by_order(1);
    CHECK(idle.take_actions() == Actions{Action::kill_all, Action::leave});
    CHECK(idle.phase() == Phase::over);
    CHECK(idle.reason() == "the supervisor has ended the run");
  }
  AgentState state = attached_at(0);
  REQUIRE(state.accept(3));
  state.running(3);
  state.ended_by_order(1);
  state.ended_by_order(1.1);
  CHECK(state.take_actions() == Actions{Action::kill_all});
  CHECK(state.phase() == Phase::ending);
  CHECK_FALSE(state.accept(4));  // nothing new begins
  state.disconnected(1.2);
  state.connected(1.2);
  double now_s = 1.2;
  CHECK(wind(state, now_s, 60).empty());
  CHECK(state.phase() == Phase::ending);
  state.gone(2, now_s);
  CHECK(state.take_actions().empty());
  state.gone(3, now_s);
  CHECK(state.take_actions() == Actions{Action::leave});
  CHECK(state.phase() == Phase::over);
  CHECK_FALSE(state.epoch());
  state.gone(3, now_s);
  CHECK(wind(state, now_s, 100).empty());
}

TEST_CASE("orders of an epoch older than the newest seen are refused") {
  AgentState state = attached_at(0);
  CHECK(state.accept(5));
  state.running(5);
  CHECK_FALSE(state.accept(4));
  CHECK(state.accept(5));
  CHECK(state.accept(6));
  CHECK_FALSE(state.accept(5));  // its processes are here still, and the run has gone on
  CHECK(state.epoch() == 5);
  state.gone(6, 1);  // that never began
  CHECK(state.epoch() == 5);
  state.gone(5, 1);
  CHECK_FALSE(state.epoch());
  CHECK(state.newest_epoch() == 6);
  // Another supervisor does not make it forget.
  state.disconnected(1);
  state.connected(1);
  state.welcomed(kTestLimits, 1);
  CHECK_FALSE(state.accept(5));
}

TEST_CASE("a grace shorter than the silence ends an attached agent") {
  AgentState state = attached_at(0, {.silence_s = 10, .grace_s = 1});
  double now_s = 0;
  const Actions actions = wind(state, now_s, 1.1);
  CHECK(actions.back() == Action::leave);
  CHECK(state.phase() == Phase::over);
}

namespace {

/// The rules once more, as a person would tell them: when the last word came, and what has been done since.
struct Rules {
  double last_word_s = 0, grace_s = kTestLimits.grace_s, paused_s = 0;
  bool ordered = false;
  Actions done;

  /// After a tick at `now_s`, at most `longest_s` after the one before.
  void hold(const AgentState& state, double now_s, const Actions& actions) {
    done.insert(done.end(), actions.begin(), actions.end());
    const double alone_s = now_s - last_word_s - paused_s;
    const bool ended = state.phase() == Phase::ending || state.phase() == Phase::over;
    CHECK(ended == (count(done, Action::kill_all) == 1));
    CHECK(count(done, Action::kill_all) <= 1);
    if (alone_s > grace_s + test::tolerance::kClockTextS) CHECK(ended);
    if (alone_s < grace_s - test::tolerance::kClockTextS && !ordered) CHECK_FALSE(ended);
    CHECK((state.phase() == Phase::over) == (count(done, Action::leave) == 1));
    if (state.phase() == Phase::over) CHECK_FALSE(state.epoch());
    CHECK(state.reason().empty() == !ended);
    if (!ended) return;
    // Once it ends, it ends: nobody is dialed, greeted or told of a heartbeat.
    const auto end = std::find(done.begin(), done.end(), Action::kill_all);
    CHECK(std::all_of(end, done.end(), [](Action a) { return a == Action::kill_all || a == Action::leave; }));
  }
};

}  // namespace

TEST_CASE(
    "the deadline is kept: a tick there does something or moves it on, so no agent spins or sleeps too "
    "long") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int history = 0; history < 500; ++history) {
    AgentState state(kTestLimits, 0);
    double now_s = 0, idle_deadline_s = -1;
    int idle = 0;
    for (int turn = 0; turn < 500 && state.phase() != Phase::over; ++turn) {
      switch (random() % 6) {
        case 0: state.connected(now_s); break;
        case 1: state.welcomed(kTestLimits, now_s); break;
        case 2: state.heard(now_s); break;
        case 3:
          if (random() % 4 == 0) state.disconnected(now_s);
          break;
        default: break;
      }
      state.take_actions();
      const double deadline_s = state.deadline_s();
      CHECK(deadline_s <= now_s + kTestLimits.silence_s + test::tolerance::kClockSumS);
      now_s = std::max(now_s, deadline_s);
      state.tick(now_s);
      // A tick exactly there may find that the limit is not passed yet; one a millisecond later may not.
      const bool passed = !state.take_actions().empty() || state.deadline_s() != deadline_s;
      idle = passed ? 0 : deadline_s == idle_deadline_s ? idle + 1 : 1;
      idle_deadline_s = deadline_s;
      if (!passed) now_s += 0.001;
      CHECK(idle < 2);
    }
  }
}
