// Goal: a run that has no spare left goes on with the widths that the remaining nodes carry, grows back when
//       nodes return, and waits or stops where too few are left; its numbers stay the same, bit for bit.
// Method: 8 ranks on four fake nodes; nodes crash and are booted again. The widths are read from the events
//         and from the file that the ranks read.
#include <catch2/catch.hpp>

#include "test/cluster/cluster_run.h"

using namespace trainctl::test;

namespace {

const std::string kFour = R"(["node0","node1","node2","node3"])";

/// How many nodes run ranks now.
size_t nodes_in_use(const ClusterRun& run) { return run.members().size() + 1; }

}  // namespace

TEST_CASE("without a spare the run shrinks, and grows back", "[width][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(4, machines());
  ClusterRun run(nodes, {.start = start, .steps = 100, .hosts = kFour});
  run.launch();
  run.await_step(7);
  nodes.crash(3);
  run.await_event("restart");
  run.await_event("ranks_up", 2);
  CHECK(nodes_in_use(run) == 2);
  const int64_t step = run.step();
  run.await_step(step + 7);
  // One of the two, so that the one that was left over takes its place.
  const int second = run.members()[0];
  nodes.crash(second);
  run.await_event("ranks_up", 3);
  CHECK(nodes_in_use(run) == 2);
  // A returned node must stay for some seconds before the run regroups: steps take longer meanwhile.
  const int remaining = run.members()[0];
  nodes.slow(remaining, "5mbit");
  nodes.boot(3);
  nodes.boot(second);
  run.await_event("regroup");
  nodes.slow(remaining, "");
  run.await_event("ranks_up", 4);
  CHECK(nodes_in_use(run) == 4);
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("with too few nodes the run waits for one to return", "[width][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(4, machines());
  ClusterRun run(nodes, {.start = start,
                         .hosts = kFour,
                         .set = {"fault_tolerance.elastic=false", "fault_tolerance.too_few_nodes=wait"}});
  run.launch();
  run.await_step(7);
  nodes.crash(2);
  run.await_event("failure");
  nodes.boot(2);
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() > 1);
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("with too few nodes the run stops with status 75 and can be resumed", "[width][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(4, machines());
  ClusterRun run(nodes, {.start = start,
                         .hosts = kFour,
                         .set = {"fault_tolerance.elastic=false", "fault_tolerance.too_few_nodes=stop"}});
  run.launch();
  run.await_step(7);
  nodes.crash(2);
  const Outcome stopped = run.finish();
  INFO(stopped.out << stopped.err);
  CHECK(stopped.status == 75);
  CHECK((stopped.out + stopped.err).find("node2") != std::string::npos);
  run.check_nothing_left();
  nodes.boot(2);
  run.resume(1);
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("four nodes become three, two and one, and four again", "[width][cluster_run][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  constexpr int64_t kTotal = 1000000;
  FakeNodes nodes(4, machines());
  // A node is a replica.
  ClusterRun run(nodes, {.start = start,
                         .steps = kTotal,
                         .hosts = kFour,
                         .set = {"parallelism.data=4", "parallelism.pipeline=1"}});
  const auto up = [&](size_t attempts, size_t width) {
    run.await_event("ranks_up", attempts);
    CHECK(nodes_in_use(run) == width);
    run.await_step(run.step() + 4);
  };
  run.launch();
  up(1, 4);
  nodes.crash(3);
  up(2, 3);
  const int second = run.members()[0], third = 3 - second;
  nodes.crash(second);
  up(3, 2);
  CHECK(run.members() == std::vector<int>{third});
  nodes.crash(third);
  up(4, 1);
  nodes.boot(third);
  up(5, 2);
  nodes.boot(second);
  up(6, 3);
  nodes.boot(3);
  up(7, 4);
  REQUIRE(run.command(0, "stop", 60).status == 0);
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 75);
  CHECK(run.events("regroup").size() == 3);
  run.check_nothing_left();
  run.check_bits(ClusterRun::straight_to(run.step(), kTotal));
}
