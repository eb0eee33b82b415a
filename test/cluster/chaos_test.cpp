// Goal: a run outlives any number of random failures without a person, with the bits of an undisturbed run;
//       each verdict names a failure that struck, where it struck, and events say where the time went.
// Method: failures of random kinds strike random nodes at random steps, also while the run recovers; lost
//         nodes come back later. Then the run is asked to stop, and a run on one node goes to the same step.
//         TRAINCTL_TEST_SEED repeats a history of failures, TRAINCTL_CHAOS_FAILURES sets how many there are.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <random>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/run/record/time_reader.h"
#include "test/cluster/cluster_run.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using trainctl::Json;
using namespace trainctl::test;

namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// A failure that was caused, and whether a verdict has named it.
struct Strike {
  std::string kind, node;
  double unix_s = 0;
  bool is_named = false;
  /// Whether a verdict with this cause is about it.
  bool explains(const std::string& cause) const {
    const auto has = [&](const std::string& words) { return cause.find(words) != std::string::npos; };
    const bool is_of_rank = has(" on " + node + ")") || has(" on " + node + " ");
    // On a busy machine the signal of its end may be known too late for the verdict.
    if (kind == "rank killed") return is_of_rank && (has("SIGKILL") || has("ended without a word"));
    if (kind == "rank stopped") return is_of_rank && has("stopped");
    // It had not ordered the start of these ranks yet.
    if (kind == "supervisor killed") return has("its ranks are gone");
    // A process of the agent: it may have been the one that serves PMIx.
    if (kind == "agent killed" && cause.starts_with("the PMIx server of " + node + " ended by itself"))
      return true;
    return cause.starts_with(node + " was lost") || has("in the memory of " + node + " (");
  }
};

/// From a strike to its verdict, also on a busy machine.
constexpr double kLongestVerdictS = 60;

/// A rank that the system did not run for a second is silent, too; one that was stopped is named as that.
bool is_of_busy_machine(const std::string& cause) {
  return cause.find(" sent no heartbeat for ") != std::string::npos && cause.find("SIGSTOP") == std::string::npos;
}

/// Failures of random kinds, one after another.
class Chaos {
 public:
  Chaos(FakeNodes& nodes, ClusterRun& run, uint64_t seed) : nodes_(nodes), run_(run), random_(seed) {}

  void strike() {
    revive(false);
    await_moment();
    const std::vector<std::pair<std::string, std::function<bool()>>> kinds = {
        {"rank killed", [this] { return signal_rank(SIGKILL); }},
        {"rank stopped", [this] { return all_present() && signal_rank(SIGSTOP); }},
        {"agent killed", [this] { return kill_agent(); }},
        {"node crashed", [this] { return lose([this](int node) { nodes_.crash(node); }, &off_); }},
        {"node off", [this] { return lose([this](int node) { nodes_.poweroff(node); }, &off_); }},
        {"node cut off", [this] { return lose([this](int node) { nodes_.partition(node); }, &cut_); }},
        {"supervisor killed", [this] { return replace_supervisor(); }},
    };
    // Some kinds need a rank or a node that is there.
    for (int tries = 0; tries < 200; ++tries) {
      const auto& [kind, strike] = kinds[below(kinds.size())];
      struck_ = {.kind = kind, .node = "", .unix_s = trainctl::real_clock().unix_s()};
      if (!strike()) continue;
      strikes_.push_back(struck_);
      return;
    }
    FAIL("no failure was possible\n" << run_.story());
  }

  /// Brings back nodes whose time has come, or all.
  void revive(bool all) {
    for (auto* lost : {&off_, &cut_})
      for (auto node = lost->begin(); node != lost->end();) {
        if (!all && --node->second > 0) {
          ++node;
          continue;
        }
        lost == &off_ ? nodes_.boot(node->first) : nodes_.heal(node->first);
        node = lost->erase(node);
      }
  }

  /// Verdicts that name no failure that struck before them, or one that another verdict has named.
  std::string unexplained(const std::vector<Json>& events) {
    std::string text;
    for (const Json& event : events) {
      if (event.at("kind") != "failure") continue;
      const std::string cause = event.at("cause").get<std::string>();
      const double at_s = event.at("t").get<double>();
      const auto named = std::find_if(strikes_.begin(), strikes_.end(), [&](const Strike& strike) {
        const double after_s = at_s - strike.unix_s;
        return !strike.is_named && after_s > 0 && after_s < kLongestVerdictS && strike.explains(cause);
      });
      if (named != strikes_.end())
        named->is_named = true;
      else if (is_of_busy_machine(cause))
        ++busy_;
      else
        text += cause + strikes_before(at_s) + "\n";
    }
    return text;
  }

  /// The strikes of the last seconds before a verdict.
  std::string strikes_before(double at_s) const {
    std::string text;
    for (const Strike& strike : strikes_)
      if (const double before_s = at_s - strike.unix_s; before_s > 0 && before_s < 10)
        text += "\n    " + std::to_string(before_s) + " s before: " + strike.kind + " " + strike.node +
                (strike.is_named ? ", named by another verdict" : "");
    return text;
  }
  std::string text() const {
    std::map<std::string, std::pair<int, int>> counts;
    for (const Strike& strike : strikes_) {
      ++counts[strike.kind].first;
      counts[strike.kind].second += strike.is_named;
    }
    std::string text;
    for (const auto& [kind, count] : counts)
      text += "  " + kind + ": " + std::to_string(count.first) + ", in a verdict " +
              std::to_string(count.second) + "\n";
    if (busy_ > 0) text += "  verdicts of a busy machine, without a strike: " + std::to_string(busy_) + "\n";
    return text;
  }

 private:
  size_t below(size_t limit) { return size_t(random_() % limit); }

  /// Some steps later; one time in five at once, when the run may be recovering.
  void await_moment() {
    if (below(5) == 0) return;
    const int64_t step = run_.step() + 1 + int64_t(below(8)), before = run_.step();
    const bool progress = eventually(100, [&] {
      // A step that was undone has gone back.
      return run_.step() >= step || run_.step() < before || !run_.supervisor().running();
    });
    INFO(text() << run_.story());
    REQUIRE(progress);
    REQUIRE(run_.supervisor().running());
  }

  /// A rank that is stopped before it is present is missed after a minute only.
  bool all_present() const {
    bool present = false;
    for (const Json& event : run_.events())
      if (event.at("kind") == "ranks_up" || event.at("kind") == "attached") present = true;
      else if (event.at("kind") == "start" || event.at("kind") == "supervisor") present = false;
    return present;
  }

  int any_node() {
    const int node = int(below(size_t(nodes_.count())));
    struck_.node = "node" + std::to_string(node);
    return node;
  }

  bool signal_rank(int number) {
    const std::vector<pid_t> ranks = run_.ranks(any_node());
    return !ranks.empty() && ::kill(ranks[below(ranks.size())], number) == 0;
  }

  bool kill_agent() {
    const auto agent = run_.agent(any_node());
    return agent && ::kill(*agent, SIGKILL) == 0;
  }

  /// Not the supervisor's own node, and at most two at a time.
  bool lose(const std::function<void(int)>& how, std::map<int, int>* lost) {
    const int node = 1 + int(below(size_t(nodes_.count() - 1)));
    if (off_.size() + cut_.size() >= 2 || off_.contains(node) || cut_.contains(node)) return false;
    struck_.node = "node" + std::to_string(node);
    how(node);
    (*lost)[node] = 1 + int(below(3));
    return true;
  }

  bool replace_supervisor() {
    run_.kill_supervisor();
    run_.resume(0);
    return true;
  }

  FakeNodes& nodes_;
  ClusterRun& run_;
  std::mt19937_64 random_;
  std::map<int, int> off_, cut_;  ///< node -> failures until it returns
  Strike struck_;
  std::vector<Strike> strikes_;
  int busy_ = 0;
};

void survive(const std::string& start, uint64_t failures, uint64_t seed) {
  constexpr int64_t kTotal = 1000000;
  INFO("TRAINCTL_TEST_SEED=" << seed);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start,
                         .steps = kTotal,
                         .grace_s = 3,
                         .set = {"fault_tolerance.max_restarts=1000000", "fault_tolerance.heartbeat_seconds=0.2",
                                 "observability.log_every_steps=100"}});
  run.launch();
  run.await_step(3);
  Chaos chaos(nodes, run, seed);
  for (uint64_t i = 0; i < failures; ++i) chaos.strike();
  chaos.revive(true);
  const int64_t step = run.step();
  INFO(chaos.text());
  REQUIRE(eventually(60, [&] { return run.step() > step + 5 || run.step() < step; }));
  // An agent that was killed has left folders; its successor removes them.
  for (int node = 0; node < nodes.count(); ++node)
    REQUIRE(eventually(60, [&] { return run.agent(node).has_value(); }));
  REQUIRE(run.command(0, "stop", 60).status == 0);
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 75);
  run.check_nothing_left();

  CHECK(chaos.unexplained(run.events()) == "");
  const std::vector<Json> events = run.events();
  const double wall_s = events.back().at("t").get<double>() - events.front().at("t").get<double>();
  const trainctl::TimeLedger ledger = trainctl::read_ledger(trainctl::real_file_system(), {run.path()}, NAN);
  std::cout << start << ", " << failures << " failures, TRAINCTL_TEST_SEED=" << seed << ", " << run.step()
            << " steps\n"
            << chaos.text() << ledger_text(ledger) << "\n";
  CHECK(std::abs(ledger.wall_s() - wall_s) <= tolerance::kWallTime * wall_s);
  CHECK(ledger.seconds()[trainctl::TimeCause::unknown] == 0);
  run.check_bits(ClusterRun::straight_to(run.step(), kTotal));
}

}  // namespace

/// Hidden: for hours on a machine of its own.
TEST_CASE("a run outlives two thousand random failures", "[.][soak]") {
  survive("pmix", number_from("TRAINCTL_CHAOS_FAILURES", 2000), test_seed());
}

TEST_CASE("a run outlives random failures", "[chaos][more]") {
  const uint64_t failures = number_from("TRAINCTL_CHAOS_FAILURES", 50);
  survive("pmix", (failures + 1) / 2, test_seed());
  survive("mpirun", failures / 2, test_seed());
}
