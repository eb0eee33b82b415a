// Goal: in whatever order nodes, links, disks, ranks, agents and supervisors fail and return, one supervisor
// publishes, nothing outlives its grace, no old epoch takes part in a newer one, the run goes on and ends,
// and its bits are those of an undisturbed run. Method: 5,000 histories of a simulated cluster, with [all]
// 100,000, a seed each, with the invariants checked after every event; then each protection taken away, which
// must break one.
// TRAINCTL_TEST_SEED=N prints one history; TRAINCTL_HISTORIES=N runs another number of them.
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>

#include "test/runtime/supervise/simulation/sim_cluster.h"
#include "test/support/seed.h"

using namespace trainctl::test;

namespace {

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

void run_histories(uint64_t histories) {
  SimCluster cluster;
  SimResult sum;
  int failures = 0;
  for (uint64_t seed = 1; seed <= histories && failures < 5; ++seed) {
    const SimResult result = cluster.run(seed);
    if (!result.violation.empty()) {
      ++failures;
      UNSCOPED_INFO("TRAINCTL_TEST_SEED=" << seed << ": " << result.violation);
    }
    sum.faults += result.faults;
    sum.epochs += result.epochs;
    sum.narrower += result.narrower;
    sum.attached += result.attached;
    sum.supervisors += result.supervisors;
    sum.stops += result.stops;
    sum.regroups += result.regroups;
    for (size_t i = 0; i < sum.cuts_in_save.size(); ++i) sum.cuts_in_save[i] += result.cuts_in_save[i];
    sum.takeovers += result.takeovers;
    sum.partly_attached += result.partly_attached;
    sum.failed_saves += result.failed_saves;
    sum.partly_answered += result.partly_answered;
    sum.memory_loads += result.memory_loads;
    sum.taken_back += result.taken_back;
    sum.given_again += result.given_again;
    sum.memory_loads_of_other_widths += result.memory_loads_of_other_widths;
  }
  REQUIRE(failures == 0);
  // The histories are about something.
  const int n = int(histories);
  CHECK(sum.faults > 2 * n);
  CHECK(sum.epochs > 2 * n);
  CHECK(sum.narrower > n / 4);
  CHECK(sum.supervisors > n + n / 4);
  CHECK(sum.attached > n / 40);
  CHECK(sum.stops > n / 20);
  CHECK(sum.regroups > n / 40);
  for (const int cuts : sum.cuts_in_save) CHECK(cuts > n / 1000);
  CHECK(sum.takeovers > n / 10);
  CHECK(sum.partly_attached > n / 100);
  CHECK(sum.failed_saves > n / 4);
  CHECK(sum.partly_answered > n / 200);
  CHECK(sum.memory_loads > n / 10);
  CHECK(sum.memory_loads_of_other_widths > n / 100);
  CHECK(sum.taken_back > n / 100);
  CHECK(sum.given_again > n / 1000);
}

}  // namespace

TEST_CASE("histories of a simulated cluster keep every invariant", "[sim_cluster]") {
  const auto seed = given_seed();
  if (!seed) return run_histories(from_environment("TRAINCTL_HISTORIES", 5000));
  const SimResult result = SimCluster().run(*seed, {}, true);
  std::printf("%s", result.log.c_str());
  CHECK(result.violation == "");
}

TEST_CASE("100,000 histories of a simulated cluster keep every invariant", "[sim_cluster][all]") {
  run_histories(100000);
}

TEST_CASE("a history is the same each time, event by event", "[sim_cluster]") {
  SimCluster one, other;
  for (const uint64_t seed : test_seeds(50)) {
    const SimResult first = one.run(seed, {}, true);
    other.run(seed + 1000);  // what ran before leaves no trace
    const SimResult second = other.run(seed, {}, true);
    INFO("TRAINCTL_TEST_SEED=" << seed);
    CHECK(first.log == second.log);
    CHECK(first.events == second.events);
  }
}

TEST_CASE("without any one of its protections a run breaks an invariant", "[sim_cluster]") {
  struct Protection {
    bool SimRules::*rule;
    const char* name;
  };
  constexpr Protection kProtections[] = {
      {&SimRules::agents_end_after_grace, "agents end after their grace time"},
      {&SimRules::welcome_ends_old_epochs, "an agent that returns is told to kill what runs there"},
      {&SimRules::one_supervisor_holds_the_lock, "one supervisor holds the lock"},
      {&SimRules::lock_is_looked_at_before_publishing, "the lock is looked at before publishing"},
      {&SimRules::all_receipts_before_publishing, "a checkpoint is published after the last receipt"},
      {&SimRules::saves_of_old_epochs_are_swept, "saves of old epochs are swept"},
      {&SimRules::agents_tell_again, "agents tell a new supervisor what the one before did not take"},
      {&SimRules::answers_are_told_again, "agents tell a new supervisor the answers that it does not know"},
      {&SimRules::parts_are_kept_until_answered, "agents keep what ranks hand in until the answer"},
      {&SimRules::ends_are_told_again, "agents tell a new supervisor how ranks ended"},
      {&SimRules::failed_parts_fail_the_save, "a part that could not be written fails its save"},
      {&SimRules::answers_go_to_all_ranks, "the answer to a save goes to all ranks"},
      {&SimRules::lost_agents_are_started_again, "lost agents are started again"},
      {&SimRules::supervisor_notices_silence, "the supervisor notices silence"},
      {&SimRules::pieces_are_verified_when_read, "what is read from memory is verified"},
      {&SimRules::orders_are_given_again, "an agent that comes again gets the orders that it missed"},
      {&SimRules::agents_take_over, "agents take the place of a dead supervisor"},
  };
  SimCluster cluster;
  for (const Protection& protection : kProtections) {
    SimRules rules;
    rules.*protection.rule = false;
    uint64_t seed = 1;
    std::string violation;
    while (seed <= 20000 && violation.empty()) violation = cluster.run(seed++, rules).violation;
    INFO("without: " << protection.name);
    CHECK(violation != "");
  }
}
