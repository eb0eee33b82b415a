// Goal: a run on several nodes that loses ranks or a node goes on from the memory of its nodes: at most one
// step is computed again though no checkpoint is on disk, its numbers are those of a run that nothing
// disturbed, bit for bit, and nothing of it is left in any memory.
// Method: 8 ranks on four fake nodes with a spare; checkpoints on disk come only at the end.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>

#include "runtime/base/file_system.h"
#include "test/cluster/cluster_run.h"

using namespace trainctl::test;

namespace {

/// Nothing on disk before the end.
std::vector<std::string> without_checkpoints(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"checkpoint.every_steps=1000"});
  return more;
}

/// The run has finished by itself, with the undisturbed bits. Returns the steps of the states that were loaded
/// from memory.
std::vector<int64_t> check_healed_from_memory(ClusterRun& run) {
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  std::vector<int64_t> steps;
  for (const auto& loaded : run.events("loaded")) {
    CHECK(loaded.at("tier") == "memory");
    steps.push_back(loaded.at("step"));
  }
  run.check_bits();
  run.check_nothing_left();
  return steps;
}

}  // namespace

TEST_CASE("a rank of several nodes is killed: all go on from the memory of their nodes",
          "[memory][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .set = without_checkpoints()});
  run.launch();
  run.await_step(7);
  const std::vector<pid_t> ranks = run.ranks(run.members()[1]);
  REQUIRE(ranks.size() == 2);
  const int64_t seen = run.step();
  REQUIRE(::kill(ranks[1], SIGKILL) == 0);
  const std::vector<int64_t> loaded = check_healed_from_memory(run);
  REQUIRE(loaded.size() == 1);
  CHECK(loaded[0] >= seen - 1);
}

TEST_CASE("ranks of several nodes are killed one after another", "[memory][cluster_run][more]") {
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.set = without_checkpoints()});
  run.launch();
  int64_t seen = 0;
  for (size_t i = 0; i < 3; ++i) {
    run.await_step(seen + 7);
    seen = run.step();
    REQUIRE(::kill(run.ranks(run.members()[i]).at(i % 2), SIGKILL) == 0);
    run.await_event("loaded", i + 1);
  }
  const std::vector<int64_t> loaded = check_healed_from_memory(run);
  REQUIRE(loaded.size() == 3);
  CHECK(loaded[2] >= seen - 1);
}

TEST_CASE("a node loses its power: its ranks go on from the memory of its partner", "[memory][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start, .set = without_checkpoints({"checkpoint.partner_every_steps=1"})});
  run.launch();
  run.await_step(12);
  const int64_t seen = run.step();
  nodes.poweroff(run.members()[1]);
  const std::vector<int64_t> loaded = check_healed_from_memory(run);
  REQUIRE(loaded.size() == 1);
  CHECK(run.events("loaded")[0].at("bytes").at("other_nodes") > 0);
  // What was on its way to the partner is lost with the node.
  CHECK(loaded[0] >= seen - 4);
}

TEST_CASE("two nodes are lost one after another, and second copies are made again in between",
          "[memory][cluster_run][more]") {
  FakeNodes nodes(6, machines());
  ClusterRun run(nodes, {.steps = 100,
                         .hosts = R"(["node0","node1","node2","node3","node4","node5"])",
                         .set = without_checkpoints({"checkpoint.partner_every_steps=1"})});
  run.launch();
  run.await_step(12);
  nodes.poweroff(run.members()[0]);
  run.await_event("loaded");
  const int64_t first = run.events("loaded")[0].at("step");
  CHECK(first >= 8);
  run.await_step(first + 15);
  nodes.poweroff(run.members()[0]);
  const std::vector<int64_t> loaded = check_healed_from_memory(run);
  REQUIRE(loaded.size() == 2);
  CHECK(loaded[1] > first);
}

TEST_CASE("supervisor and agents of all nodes are killed: a resume goes on from the memory of the nodes",
          "[memory][cluster_run]") {
  const bool has_checkpoint = GENERATE(true, false);
  CAPTURE(has_checkpoint);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.set = {fmt::format("checkpoint.every_steps={}", has_checkpoint ? 5 : 1000)}});
  run.launch();
  run.await_step(12);
  // All at once: what the ranks do afterwards nobody records.
  std::vector<pid_t> doomed = {run.supervisor_process()};
  for (int node = 0; node < 5; ++node)
    if (const auto agent = run.agent(node)) doomed.push_back(*agent);
  REQUIRE(doomed.size() == 6);
  for (const pid_t process : doomed) ::kill(process, SIGKILL);
  REQUIRE(eventually(120, [&] { return run.processes().empty(); }));
  const int64_t seen = run.step();
  run.resume(2);
  const std::vector<int64_t> loaded = check_healed_from_memory(run);
  REQUIRE(loaded.size() == 1);
  CHECK(loaded[0] >= seen - 1);
}
