// Goal: an agent ends everything when its grace time has passed without a word, in whatever phase it waits;
// it obeys newer epochs only; where it may, it starts a supervisor at its time and not before; and time
// during which it did not run itself is not held against the supervisor.
// Method: a hand-wound clock that ticks exactly when the agent asks for it, as its loop does; all short
// histories of what a supervisor may do (exhaustive).
#include <catch2/catch.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "runtime/run/agent/agent_state.h"

using namespace trainctl;

namespace {

using Action = AgentState::Action;
using Phase = AgentState::Phase;

constexpr AgentState::Options kOptions = {.silence_s = 2, .grace_s = 10, .dial_s = 0.1, .beat_s = 0.25};

/// What the other end does with a connection.
enum OtherEnd { absent, accepts, welcomes, kSupervisors };

/// Runs the agent until it is over or `until_s`; its first tick comes at `now_s`. Returns when it was over.
double run(AgentState& agent, double now_s, double until_s, OtherEnd supervisor) {
  for (; now_s < until_s; now_s = std::max(now_s + 1e-6, agent.deadline_s())) {
    agent.tick(now_s);
    for (const Action action : agent.take_actions()) {
      if (action == Action::dial && supervisor == absent) agent.disconnected(now_s);
      if (action == Action::dial && supervisor != absent) agent.connected(now_s);
      if (action == Action::kill_all) agent.gone(1, now_s);
    }
    if (supervisor == welcomes && agent.phase() == Phase::greeting) agent.welcomed(kOptions, now_s);
    if (supervisor == welcomes) agent.heard(now_s);
    if (agent.phase() == Phase::over) return now_s;
  }
  return until_s;
}

}  // namespace

TEST_CASE("an agent ends after its grace time, whether nobody listens or nobody answers") {
  for (const OtherEnd supervisor : {absent, accepts}) {
    AgentState agent(kOptions, 0);
    agent.running(1);
    CHECK(run(agent, 0, 100, supervisor) == Approx(10).margin(0.2));
    CHECK(agent.reason().find("no word from a supervisor for 10.0 s") == 0);
  }
  AgentState agent(kOptions, 0);
  CHECK(run(agent, 0, 100, welcomes) == 100);
}

TEST_CASE("in all histories of four spells an agent lives as long as its last word says") {
  constexpr double kSpells[] = {0.5, 3, 9};
  int ended = 0;
  for (int code = 0; code < 9 * 9 * 9 * 9; ++code) {
    AgentState agent(kOptions, 0);
    double now_s = 0, word_s = 0, over_s = -1;
    for (int i = 0, rest = code; i < 4 && over_s < 0; ++i, rest /= 9) {
      const auto supervisor = OtherEnd(rest % 3);
      const double until_s = now_s + kSpells[rest / 3 % 3];
      // Whatever connection there was is cut where the supervisor changes.
      agent.disconnected(now_s);
      const double at_s = run(agent, now_s, until_s, supervisor);
      if (agent.phase() == Phase::over) over_s = at_s;
      if (supervisor == welcomes && over_s < 0) word_s = until_s;
      now_s = until_s;
    }
    INFO("history " << code);
    if (over_s >= 0) {
      ++ended;
      CHECK(over_s - word_s == Approx(10).margin(0.3));
    } else {
      CHECK(now_s - word_s < 10.3);
    }
  }
  CHECK(ended > 500);
}

TEST_CASE("a pause of the agent itself is not silence of its supervisor") {
  AgentState agent(kOptions, 0);
  REQUIRE(run(agent, 0, 5, welcomes) == 5);
  agent.tick(60);
  CHECK(agent.phase() == Phase::attached);
  // From then on time counts again.
  CHECK(run(agent, 60.25, 200, absent) == Approx(70).margin(1));
}

TEST_CASE("an agent obeys no epoch that is older than one it has seen, and none at its end") {
  AgentState agent(kOptions, 0);
  CHECK(agent.accept(3));
  CHECK(agent.accept(3));
  CHECK(!agent.accept(2));
  CHECK(agent.accept(5));
  agent.running(5);
  agent.ended_by_order(1);
  CHECK(agent.phase() == Phase::ending);
  CHECK(!agent.accept(6));
  CHECK(agent.take_actions() == std::vector{Action::kill_all});
  agent.gone(4, 1);
  CHECK(agent.phase() == Phase::ending);
  agent.gone(5, 1);
  CHECK(agent.phase() == Phase::over);
  CHECK(agent.take_actions() == std::vector{Action::leave});
}

TEST_CASE("an agent starts a supervisor again and again until it hears one or its grace is over") {
  AgentState::Options options = kOptions;
  options.takeover_s = 4;
  for (const OtherEnd supervisor : {absent, accepts}) {
    AgentState agent(kOptions, 0);
    agent.connected(0);
    agent.welcomed(options, 0);
    agent.take_actions();
    agent.running(1);
    std::vector<double> started_s;
    for (double now_s = 0; agent.phase() != Phase::over; now_s = std::max(now_s + 1e-6, agent.deadline_s())) {
      REQUIRE(now_s < 20);
      agent.tick(now_s);
      for (const Action action : agent.take_actions()) {
        if (action == Action::dial && supervisor == absent) agent.disconnected(now_s);
        if (action == Action::dial && supervisor == accepts) agent.connected(now_s);
        if (action == Action::take_over) started_s.push_back(now_s);
        if (action == Action::kill_all) agent.gone(1, now_s);
      }
    }
    REQUIRE(started_s.size() == 6);
    for (size_t i = 0; i < 6; ++i) CHECK(started_s[i] == Approx(4.0 + double(i)).margin(0.001));
  }
}

TEST_CASE("a word of a supervisor puts the takeover off, and without a welcome there is none") {
  AgentState::Options options = kOptions;
  options.takeover_s = 4;
  AgentState agent(kOptions, 0);
  const auto starts = [&](double from_s, double until_s, OtherEnd supervisor) {
    int count = 0;
    for (double now_s = from_s; now_s < until_s; now_s += 0.05) {
      agent.tick(now_s);
      for (const Action action : agent.take_actions()) {
        if (action == Action::dial && supervisor == absent) agent.disconnected(now_s);
        if (action == Action::dial && supervisor != absent) agent.connected(now_s);
        count += action == Action::take_over;
      }
      if (supervisor == welcomes && agent.phase() == Phase::greeting) agent.welcomed(options, now_s);
      if (supervisor == welcomes) agent.heard(now_s);
    }
    return count;
  };
  CHECK(starts(0, 9, absent) == 0);
  CHECK(starts(9, 12, welcomes) == 0);
  agent.disconnected(12);
  CHECK(starts(12, 15.9, absent) == 0);
  CHECK(starts(15.9, 16.1, absent) == 1);
  CHECK(starts(16.1, 18, welcomes) == 0);
  agent.disconnected(18);
  CHECK(starts(18, 21.9, absent) == 0);
  agent.ended_by_order(21.9);
  CHECK(starts(21.9, 40, absent) == 0);
}

TEST_CASE("agents start a supervisor one after another, in groups that double, well inside the grace") {
  for (const double silence_s : {0.5, 2.0, 10.0})
    for (const double grace_s : {4 * silence_s, 6 * silence_s, 100 * silence_s}) {
      std::map<double, int> turns;
      double before_s = 0;
      for (int order = 0; order < 5000; ++order) {
        const double after_s = takeover_after_s(silence_s, grace_s, order);
        CHECK(after_s >= before_s);
        CHECK(after_s >= std::max(silence_s, grace_s / 4));
        CHECK(after_s <= 0.75 * grace_s);
        ++turns[after_s];
        before_s = after_s;
      }
      INFO(silence_s << " " << grace_s);
      REQUIRE(turns.size() >= 6);
      int size = 1;
      for (auto turn = turns.begin(); std::next(turn) != turns.end(); ++turn, size *= 2)
        CHECK(turn->second == size);
    }
}
