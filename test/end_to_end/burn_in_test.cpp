// Goal: with launcher.burn_in the devices of a run work before its first step: a core that computes wrongly
// ends the run before it has a step and is named, a machine in order goes on with the bits of a run without
// it, and a restart is not tested again. Method: the real program on CPU ranks; a library under it spoils
// the products of one core.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <climits>

#include "test/end_to_end/fault_bench.h"
#include "test/support/wrong_core.h"

using namespace trainctl::test;
using trainctl::Json;

namespace {

std::string name_of_host() {
  char host[HOST_NAME_MAX + 1] = "";
  ::gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace

TEST_CASE("a burn-in changes no bit, and a restart costs none", "[burn_in]") {
  FaultBench bench;
  const auto held =
      bench.hold("tested", 7, {"-s", "fault_tolerance.max_restarts=2", "-s", "launcher.burn_in=0.2"});
  REQUIRE(::kill(held.ranks[1], SIGKILL) == 0);
  const Outcome o = held.child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(o.err.find("burn-in: nothing is wrong with 1 node (") != std::string::npos);
  CHECK(events_of(held.run, "restart").size() == 1);
  const std::vector<Json> tests = events_of(held.run, "burn_in");
  REQUIRE(tests.size() == 1);
  REQUIRE(tests[0].at("nodes").size() == 1);
  CHECK(tests[0].at("nodes")[0].at("product_s").get<double>() > 0);
  CHECK(tests[0].at("nodes")[0].at("place").get<std::string>().starts_with("core "));
  CHECK(losses_of(held.run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", held.run, "--diff", bench.whole}).status == 0);
}

TEST_CASE("a core that computes wrongly ends a run before its first step", "[burn_in]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  const Outcome o =
      run_trainctl(dir.path(), {"launch", "job.json", "-s", "name=wrong", "-s", "launcher.burn_in=0.2", "-s",
                                wrong_core_field(trainctl_path(), name_of_host())});
  INFO(o.err);
  CHECK(o.status == 11);
  const std::string run = run_of(dir.path(), "wrong");
  const std::string core = "core " + std::to_string(wrong_core()) + ": ";
  const std::vector<Json> failures = events_of(run, "failure");
  REQUIRE(failures.size() == 1);
  CHECK_THAT(failures[0].at("cause").get<std::string>(),
             Catch::Contains("burn-in: " + core) &&
                 Catch::Contains("of whole numbers have other bits than the reference, element 0 is 0x"));
  const std::vector<Json> tests = events_of(run, "burn_in");
  REQUIRE(tests.size() == 1);
  CHECK_THAT(tests[0].at("nodes")[0].at("wrong").get<std::string>(), Catch::StartsWith(core));
  CHECK(line_count(run + "/metrics.jsonl") == 0);
  // Without a burn-in the run does not see it.
  CHECK(run_trainctl(dir.path(), {"launch", "job.json", "-s", "name=blind", "-s", "schedule.total_steps=6",
                                  "-s", wrong_core_field(trainctl_path(), name_of_host())})
            .status == 0);
}
