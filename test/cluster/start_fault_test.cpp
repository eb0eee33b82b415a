// Goal: a fault while ranks are being started, or two faults at the same moment, cost a run no more than one
// in a
//       step does: it goes on without a person, with the undisturbed bits, and nothing is left on any node.
// Method: a rank stops itself inside MPI_Init, or an idle agent is stopped before it gets its order; then its
// agent
//         is killed, or its node crashes or is cut off. For two faults both strike before the run can answer
//         one.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/base/file_system.h"
#include "test/cluster/cluster_run.h"

using namespace trainctl::test;

namespace {

constexpr const char* kStopInInit = R"(launcher.env={"TRAINCTL_STOP_AT":"2:starting::MPI_Init"})";

/// Waits until rank 2 has stopped itself, and returns its node.
int node_that_starts(ClusterRun& run) {
  int node = -1;
  const bool stopped = eventually(30, [&] {
    for (node = 1; node < 5; ++node)
      for (const pid_t rank : run.ranks(node))
        if (read_file("/proc/" + std::to_string(rank) + "/stat").find(") T ") != std::string::npos)
          return true;
    return false;
  });
  INFO(run.story());
  REQUIRE(stopped);
  CHECK(run.step() == 0);
  return node;
}

void check_started_again(ClusterRun& run, uint64_t epoch = 2) {
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() >= epoch);
  run.check_bits();
  run.check_nothing_left();
}

}  // namespace

TEST_CASE("an agent is killed while its ranks are in MPI_Init", "[fault][start_fault][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(6, machines());
  ClusterRun run(nodes, {.start = start, .supervisor = 5, .set = {kStopInInit}});
  run.launch();
  const auto agent = run.agent(node_that_starts(run));
  REQUIRE(agent);
  REQUIRE(::kill(*agent, SIGKILL) == 0);
  check_started_again(run);
}

TEST_CASE("a node crashes while its ranks are in MPI_Init", "[fault][start_fault]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(6, machines());
  ClusterRun run(nodes, {.start = start, .supervisor = 5, .set = {kStopInInit}});
  run.launch();
  nodes.crash(node_that_starts(run));
  check_started_again(run);
}

TEST_CASE("a node is cut off while its ranks are in MPI_Init, and heals after the grace",
          "[fault][start_fault][more]") {
  FakeNodes nodes(6, machines());
  ClusterRun run(nodes,
                 {.steps = 100, .supervisor = 5, .silence_s = 2, .grace_s = 5, .set = {kStopInInit}});
  run.launch();
  const int node = node_that_starts(run);
  nodes.partition(node);
  run.await_event("node_lost");
  CHECK(eventually(120, [&] { return run.ranks(node).empty() && !run.agent(node); }));
  nodes.heal(node);
  check_started_again(run);
}

TEST_CASE("the supervisor is killed between the shares of a fence, and the next one gets them all",
          "[fault][start_fault][more]") {
  FakeNodes nodes(6, machines());
  ClusterRun run(nodes, {.supervisor = 5, .grace_s = 20, .set = {kStopInInit}});
  run.launch();
  const int node = node_that_starts(run);
  // The other nodes' shares have come, or are lost with the supervisor: they must come again in both cases.
  for (const int other : run.members())
    REQUIRE(eventually(120, [&] { return run.ranks(other).size() == 2; }));
  run.kill_supervisor();
  run.resume(5);
  for (const pid_t rank : run.ranks(node)) ::kill(rank, SIGCONT);
  check_started_again(run, 1);
  CHECK(run.epoch() == 1);
}

TEST_CASE("an agent is killed between the order to start ranks and their start", "[fault][start_fault][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(6, machines());
  ClusterRun run(nodes, {.start = start, .supervisor = 5, .silence_s = 5, .grace_s = 6});
  run.launch();
  run.await_step(7);
  const std::vector<int> members = run.members();
  int spare = 0;
  while (std::find(members.begin(), members.end(), spare) != members.end()) ++spare;
  const auto agent = run.agent(spare);
  REQUIRE(agent);
  REQUIRE(::kill(*agent, SIGSTOP) == 0);
  nodes.crash(members[1]);
  // The order is on its way to an agent that does not read it.
  REQUIRE(eventually(120, [&] { return run.epoch() == 2; }));
  CHECK(run.ranks(spare).empty());
  REQUIRE(::kill(*agent, SIGKILL) == 0);
  // An agent that is started as the run ends stays for its grace.
  check_started_again(run, 3);
}

TEST_CASE("two nodes crash at once and one spare is left", "[fault][start_fault][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100});
  run.launch();
  run.await_step(7);
  const std::vector<int> members = run.members();
  nodes.crash(members[0]);
  nodes.crash(members[2]);
  check_started_again(run);
  CHECK(run.events("node_lost").size() == 2);
}

TEST_CASE("two agents are killed at once", "[fault][start_fault][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100});
  run.launch();
  run.await_step(7);
  const std::vector<int> members = run.members();
  const auto one = run.agent(members[0]), other = run.agent(members[1]);
  REQUIRE(one);
  REQUIRE(other);
  ::kill(*one, SIGKILL);
  ::kill(*other, SIGKILL);
  check_started_again(run);
}

TEST_CASE("the supervisor is killed and a node loses its power at once", "[supervisor][start_fault][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100, .grace_s = 6});
  run.launch();
  run.await_step(7);
  const int node = run.members()[1];
  run.kill_supervisor();
  nodes.poweroff(node);
  run.resume(0);
  check_started_again(run);
}
