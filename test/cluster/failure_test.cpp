// Goal: whatever a run on several nodes loses, it goes on without a person, its numbers are those of a run
//       that nothing disturbed, bit for bit, and nothing of it is left on any node.
// Method: 8 ranks on four fake nodes with a spare, started by mpirun and by PMIx; the fault strikes while
//         steps are running, which the restart's event proves.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "test/cluster/cluster_run.h"

using namespace trainctl::test;

namespace {

/// The run finishes by itself in a later epoch, with the undisturbed bits, and leaves nothing.
void check_healed(ClusterRun& run, double seconds = 600) {
  const Outcome outcome = run.finish(seconds);
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() > 1);
  CHECK_FALSE(run.events("restart").empty());
  run.check_bits();
  run.check_nothing_left();
}

/// The node is the first that is lost, and is lost once. A busy machine may silence another one.
void check_lost(ClusterRun& run, const std::string& host) {
  std::vector<std::string> lost;
  for (const auto& event : run.events("node_lost")) lost.push_back(event.at("node").get<std::string>());
  INFO(run.story());
  REQUIRE_FALSE(lost.empty());
  CHECK(lost.front() == host);
  CHECK(std::count(lost.begin(), lost.end(), host) == 1);
}

}  // namespace

TEST_CASE("a rank is killed", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start});
  run.launch();
  run.await_step(7);
  const std::vector<pid_t> ranks = run.ranks(run.members()[1]);
  REQUIRE(ranks.size() == 2);
  REQUIRE(::kill(ranks[1], SIGKILL) == 0);
  check_healed(run);
  CHECK(run.events("node_lost").empty());
}

TEST_CASE("a node crashes", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start});
  run.launch();
  run.await_step(7);
  const int node = run.members()[0];
  nodes.crash(node);
  check_healed(run);
  check_lost(run, nodes.host(node));
}

TEST_CASE("a node loses its power", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start});
  run.launch();
  run.await_step(7);
  const int node = run.members()[1];
  nodes.poweroff(node);
  check_healed(run);
  check_lost(run, nodes.host(node));
}

TEST_CASE("a node is cut off for longer than the grace, and heals", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100, .silence_s = 2, .grace_s = 5});
  run.launch();
  run.await_step(7);
  const int node = run.members()[2];
  REQUIRE(run.ranks(node).size() == 2);
  nodes.partition(node);
  run.await_event("node_lost");
  // The cut-off node ends its ranks by itself: it hears nobody.
  CHECK(eventually(120, [&] { return run.ranks(node).empty() && !run.agent(node); }));
  nodes.heal(node);
  check_healed(run);
}

TEST_CASE("a node is cut off for less than the grace and becomes a spare", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100, .silence_s = 2, .grace_s = 20});
  run.launch();
  run.await_step(7);
  const int node = run.members()[2];
  const auto agent = run.agent(node);
  REQUIRE(run.ranks(node).size() == 2);
  const size_t seen = run.events("node_up").size();
  nodes.partition(node);
  run.await_event("node_lost");
  // It goes on by itself meanwhile.
  CHECK(run.ranks(node).size() == 2);
  nodes.heal(node);
  run.await_event("node_up", seen + 1);
  CHECK(eventually(120, [&] { return run.ranks(node).empty(); }));
  CHECK(run.agent(node) == agent);
  check_healed(run);
}

TEST_CASE("a slow link slows the run and ends nothing", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .silence_s = 3});
  run.launch();
  run.await_step(7);
  nodes.slow(run.members()[1], "20mbit");
  const int64_t step = run.step();
  run.await_step(step + 6);
  nodes.slow(run.members()[1], "");
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() == 1);
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("an agent is killed", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100});
  run.launch();
  run.await_step(7);
  const int node = run.members()[0];
  const auto agent = run.agent(node);
  REQUIRE(agent);
  REQUIRE(::kill(*agent, SIGKILL) == 0);
  // Another one is started there, ends what the first one left, and the node is a spare.
  CHECK(eventually(120, [&] { return run.agent(node) && run.agent(node) != agent; }));
  CHECK(eventually(120, [&] { return run.ranks(node).empty(); }));
  check_healed(run);
}

TEST_CASE("a rank is stopped", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .set = {"fault_tolerance.heartbeat_seconds=0.2"}});
  run.launch();
  run.await_step(7);
  const std::vector<pid_t> ranks = run.ranks(run.members()[1]);
  REQUIRE(ranks.size() == 2);
  REQUIRE(::kill(ranks[0], SIGSTOP) == 0);
  check_healed(run);
  CHECK(run.events("failure")[0].at("cause").get<std::string>().find("stopped") != std::string::npos);
}

TEST_CASE("a node crashes and a rank is killed at once", "[fault][cluster_run][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start});
  run.launch();
  run.await_step(7);
  const std::vector<int> members = run.members();
  const std::vector<pid_t> ranks = run.ranks(members[0]);
  REQUIRE(ranks.size() == 2);
  REQUIRE(::kill(ranks[0], SIGKILL) == 0);
  nodes.crash(members[1]);
  check_healed(run);
}

TEST_CASE("a rank is killed while the run recovers", "[fault][cluster_run][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start});
  run.launch();
  run.await_step(7);
  nodes.crash(run.members()[0]);
  REQUIRE(eventually(120, [&] { return run.epoch() == 2; }));
  const int node = run.members()[1];
  REQUIRE(eventually(120, [&] {
    const std::vector<pid_t> ranks = run.ranks(node);
    return !ranks.empty() && ::kill(ranks[0], SIGKILL) == 0;
  }));
  check_healed(run);
  CHECK(run.epoch() >= 3);
}

TEST_CASE("the supervisor is killed and another attaches", "[supervisor][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100, .silence_s = 3, .grace_s = 10});
  run.launch();
  run.await_step(7);
  run.kill_supervisor();
  const int64_t step = run.step();
  run.resume(0);
  run.await_event("attached");
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(step < 100);
  CHECK(run.epoch() == 1);
  CHECK(run.events("restart").empty());
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("supervisors are killed one after another while the run saves", "[supervisor][cluster_run][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  // Nearly always a save is under way.
  ClusterRun run(nodes, {.start = start,
                         .steps = 100,
                         .silence_s = 3,
                         .grace_s = 10,
                         .set = {"checkpoint.every_steps=1"}});
  run.launch();
  for (int kills = 1; kills <= 3; ++kills) {
    run.await_step(run.step() + 5);
    run.kill_supervisor();
    run.resume(0);
    run.await_event("attached", size_t(kills));
  }
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() == 1);
  CHECK(run.events("restart").empty());
  CHECK(run.events("save_failed").empty());
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("the supervisor's node loses its power", "[supervisor][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start,
                         .supervisor = 4,
                         .grace_s = 3,
                         .hosts = R"(["node0","node1","node2","node3"])"});
  run.launch();
  run.await_step(7);
  nodes.poweroff(4);
  // The ranks may finish their steps meanwhile, but nobody publishes a checkpoint.
  run.check_nothing_left();
  run.resume(0);
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  run.check_bits();
  run.check_nothing_left();
}
