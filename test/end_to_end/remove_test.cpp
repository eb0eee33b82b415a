// Goal: rm removes the runs that are named, and prune those that came to nothing; one that is running, or that
//       is not named in full, stays.
// Method: the real program on small runs.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

TEST_CASE("runs that have ended are removed by rm and prune, others stay", "[fault]") {
  const TemporaryFolder dir;
  write_file(dir / "job.json", tiny_spec("tiny"));
  const auto launch = [&](const std::string& id, const std::string& more) {
    return std::vector<std::string>{"launch", "job.json", "-s", "observability.run_id=" + id, "-s", more};
  };
  for (const char* id : {"one", "two"})
    REQUIRE(run_trainctl(dir.path(), launch(id, "schedule.total_steps=4")).status == 0);
  std::filesystem::create_directories(dir / "runs/bare/logs");
  std::filesystem::copy(dir / "runs/one/run.json", dir / "runs/bare/run.json");
  std::filesystem::copy(dir / "runs/one/job.json", dir / "runs/bare/job.json");
  std::vector<std::string> words = launch("live", "schedule.total_steps=100000");
  words.insert(words.begin(), trainctl_path());
  Child live(words, dir.path());
  REQUIRE(eventually(60, [&] { return line_count(dir / "runs/live/metrics.jsonl") > 2; }));

  const auto refused = [&](std::vector<std::string> arguments, const std::string& message) {
    const Outcome o = run_trainctl(dir.path(), arguments);
    CHECK(o.status == 2);
    CHECK_THAT(o.err, Contains(message));
  };
  refused({"rm", "live", "--yes"}, "run live is running; stop it first: trainctl stop live");
  refused({"rm", "one", "live", "--yes"}, "run live is running");  // none of them goes
  refused({"rm", "on", "--yes"}, "must be named in full: one");
  refused({"rm", "latest", "--yes"}, "must be named in full");
  refused({"rm", "runs/one/ckpt/step-00000004", "--yes"}, "is a checkpoint; rm removes whole runs");
  refused({"rm", "one"}, "there is no terminal to ask in; add --yes");
  CHECK_THAT(run_trainctl(dir.path(), {"rm", "one", "--dry-run"}).out,
             Contains("one  ") && Contains("1 checkpoint") && Contains("nothing was removed of 1 run"));
  CHECK(run_trainctl(dir.path(), {"prune", "--yes"}).out.starts_with("removed 1 run"));
  CHECK_FALSE(std::filesystem::exists(dir / "runs/bare"));
  CHECK(run_trainctl(dir.path(), {"rm", "one", "--yes"}).out.starts_with("removed 1 run"));
  CHECK_FALSE(std::filesystem::exists(dir / "runs/one"));
  CHECK(run_trainctl(dir.path(), {"inspect-ckpt", "two", "--verify"}).status == 0);
  live.signal(SIGINT);
  CHECK(live.wait(120).status == 75);
  CHECK(run_trainctl(dir.path(), {"rm", dir / "runs/live", "runs/two", "--yes"}).status == 0);
  CHECK(std::filesystem::is_empty(dir / "runs"));
}
