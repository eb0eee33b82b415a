// The manifest for Kubernetes, as a user asks for it.
//
// Goal: it names a run that exists, whose spec has the nodes that the manifest's agents name themselves; a wrong request writes
// nothing. Method: the real program; jobset.yaml and the run's job.json are compared with each other.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <filesystem>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
using namespace trainctl::test;

TEST_CASE("a manifest for Kubernetes and the run that it starts fit together", "[input]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("pods"));
  const std::vector<std::string> words = {
      "manifest", "job.json",         "-s", "launcher.slurm.nodes=2",    "-s",      "launcher.slurm.spares=1",
      "-s",       "launcher.slots=2", "-s", "observability.run_id=pods", "--claim", "runs"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_trainctl(dir.path(), all);
  };
  const Outcome wrong = with({"--mount", dir.path()});
  CHECK(wrong.status == 2);
  CHECK_THAT(wrong.err, Catch::Contains("--image is missing"));
  CHECK_FALSE(std::filesystem::exists(dir.path() + "/runs/pods"));
  const Outcome preview = with({"--mount", dir.path(), "--image", "i:1", "--dry-run"});
  CHECK(preview.status == 0);
  CHECK_FALSE(std::filesystem::exists(dir.path() + "/runs/pods"));
  const Outcome made = with({"--mount", dir.path(), "--image", "i:1"});
  INFO(made.err);
  REQUIRE(made.status == 0);
  CHECK(made.out == preview.out);
  const std::string run = dir.path() + "/runs/pods";
  CHECK(read_file(run + "/jobset.yaml") == made.out);
  CHECK_THAT(made.out, Catch::Contains("completions: 3") && Catch::Contains("node-$(TRAINCTL_NODE_INDEX)"));
  const auto launcher = Json::parse(read_file(run + "/job.json"))["launcher"];
  CHECK(launcher["hosts"] == Json({"node-0", "node-1", "node-2"}));
  CHECK(launcher["shell"] == "none");
  CHECK(launcher["port"] == 7077);
  CHECK(launcher["slots"] == 2);
  CHECK(with({"--mount", dir.path(), "--image", "i:1"}).status == 0);   // the same job again
}
