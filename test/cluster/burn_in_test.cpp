// Goal: a node on which a core computes wrongly is out before the first step, is on the quarantine list,
// and a spare takes its place: the run has the undisturbed bits. Method: 8 ranks on four fake nodes with a
// spare; a library under the ranks of one node spoils the products of one core.
#include <catch2/catch.hpp>

#include "runtime/supervise/decide/quarantine.h"
#include "test/cluster/cluster_run.h"
#include "test/support/wrong_core.h"

using namespace trainctl::test;
using trainctl::Json;

TEST_CASE("a node that computes wrongly is left out before the first step", "[fault][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.start = start,
                         .silence_s = 300,  // all cores are at work
                         .grace_s = 600,
                         .hosts = R"(["node0","node1","node2","node3"])",
                         .set = {"launcher.burn_in=0.3", "fault_tolerance.max_restarts=0",
                                 wrong_core_field(program(), "node1")}});
  run.launch();
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  const std::vector<Json> tests = run.events("burn_in");
  REQUIRE(tests.size() == 1);  // the others have passed
  REQUIRE(tests[0].at("nodes").size() == 4);
  for (const Json& test : tests[0].at("nodes")) CHECK(test.contains("wrong") == (test.at("node") == "node1"));
  CHECK(run.epoch() == 2);
  const auto list =
      trainctl::QuarantineList::from_json(read_file(nodes.folder() + "/trainctl/quarantine.json"));
  REQUIRE(list.entries().size() == 1);
  CHECK(list.entries()[0].node == "node1");
  REQUIRE_FALSE(list.entries()[0].evidence.empty());
  CHECK(list.entries()[0].evidence[0].kind == trainctl::NodeEvidence::failed_probe);
  CHECK_THAT(list.entries()[0].evidence[0].cause, Catch::StartsWith("burn-in: core "));
  run.check_bits();
  run.check_nothing_left();
}
