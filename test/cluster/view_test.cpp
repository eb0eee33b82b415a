// Goal: what people see of a run on several nodes is true: a row for each node with what it has and does,
// every change of membership
//       with its reason, numbers of ranks with the nodes that have them; a node that cannot take part is
//       refused with the reason.
// Method: 8 ranks on four fake nodes with a spare; `status`, once and watched, and the run's records are read
// while nodes fail.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "test/cluster/cluster_run.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

int spare_of(const ClusterRun& run) {
  const std::vector<int> members = run.members();
  for (int node = 1; node < 5; ++node)
    if (std::find(members.begin(), members.end(), node) == members.end()) return node;
  return -1;
}

}  // namespace

TEST_CASE("status shows nodes, machines and events, and the loss of a spare is recorded",
          "[view][cluster_run]") {
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.steps = 4000, .silence_s = 4, .set = {"observability.rank_metrics_every_steps=5"}});
  run.launch();
  run.await_step(12);
  const int spare = spare_of(run);
  REQUIRE(spare > 0);
  REQUIRE(eventually(120, [&] {
    const std::string text = run.command(0, "status").out;
    return text.find("spare") != std::string::npos && text.find("(median)") != std::string::npos;
  }));
  const std::string before = run.command(0, "status").out;
  INFO(before);
  CHECK_THAT(before,
             Contains("name ") && Contains("memory") && Contains("node0  ") && Contains("running"));
  CHECK_THAT(before, Contains("machines   node") && Contains(" and 1 more: ") && Contains(" cores, ") &&
                         Contains("/dev/shm"));
  CHECK_THAT(before, Contains("compute    ") && Contains("(median)") && Contains(", node"));
  CHECK_THAT(before, Contains("events     ") && Contains("node_up"));

  nodes.crash(spare);
  run.await_event("node_lost");
  CHECK(run.events("node_lost")[0].at("node") == nodes.host(spare));
  CHECK_FALSE(run.events("node_lost")[0].at("reason").get<std::string>().empty());
  nodes.crash(run.members()[0]);  // without a spare: narrower
  run.await_event("recovered");
  CHECK(run.events("node_lost").size() == 2);
  const std::string after = run.command(0, "status").out;
  INFO(after);
  CHECK_THAT(after, Contains("lost ") && Contains("recovered") && Contains("first evidence: ending"));

  // What a reader that is no terminal gets of --watch: blocks, until the run ends.
  Child watcher(nodes.exec(0, {program(), "status", run.path(), "--watch", "--every", "0.2"}));
  run.await_step(run.step() + 60);
  CHECK(watcher.running());
  run.supervisor().signal(SIGINT);
  CHECK(run.finish().status == 75);
  const Outcome watched = watcher.wait(120);
  CHECK(watched.status == 0);
  CHECK(watched.out.find("--- 2") != watched.out.rfind("--- 2"));
  CHECK_THAT(watched.out, Contains("· running ·") && !Contains("\033"));
  CHECK_THAT(watched.out.substr(watched.out.rfind("--- 2")), Contains("trainctl resume"));

  const std::string line = read_file(run.path() + "/metrics.ranks.jsonl");
  CHECK_THAT(line, Contains("\"count\":8,") && Contains("\"compute_s\":["));
  run.check_nothing_left();
}

TEST_CASE("a node that cannot write its folders is refused with the reason, and the run goes on",
          "[view][cluster_run][more]") {
  FakeNodes nodes(5, machines());
  REQUIRE(nodes.run(2, {"mount", "-o", "remount,ro", "/dev/shm"}, 5).status == 0);
  ClusterRun run(nodes, {.steps = 100});
  run.launch();
  run.await_event("node_failed");   // before the first attempt, or while it runs
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.events("node_failed")[0].at("node") == nodes.host(2));
  CHECK_THAT(run.events("node_failed")[0].at("reason").get<std::string>(),
             Contains("node2 cannot write /dev/shm: Read-only file system; make room or repair it"));
  CHECK_THAT(outcome.err, Contains("cannot write /dev/shm"));
  run.check_bits();
  // An agent that was started there as the run ended hears of no supervisor, and ends after the default grace.
  run.check_nothing_left(40);
}
