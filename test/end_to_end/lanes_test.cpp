// Goal: a run that has more lanes than ranks gets narrower and wider with the same bits, also at widths that
// do not divide the lanes; other lanes, which are other bits, come by --allow-other-bits alone and are
// recorded. Method: a run of eight data-parallel ranks and the lanes that it takes by itself; runs that are
// cut off by kill -9 and go on at 7, 3, 8 and 16 ranks, compared with the undisturbed one; then 8 and 16
// lanes in place of 4.
#include <signal.h>

#include <catch2/catch.hpp>
#include <iostream>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Contains;

namespace {

struct Runs {
  TemporaryFolder dir;
  std::vector<std::string> mesh = {"-s", "parallelism.pipeline=1",    "-s", "parallelism.lanes=auto",
                                   "-s", "batch.global_sequences=16", "-s", "schedule.total_steps=60"};

  Runs() { write_file(dir.path() + "/job.json", tiny_spec("lanes")); }

  Outcome trainctl(const std::vector<std::string>& words) const { return run_trainctl(dir.path(), words); }
  std::string launch(const std::string& name, const std::string& data,
                     std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"launch",       "job.json", "-s",
                                      "name=" + name, "-s",       "parallelism.data=" + data};
    words.insert(words.end(), mesh.begin(), mesh.end());
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = trainctl(words);
    INFO(o.err);
    REQUIRE(o.status == 0);
    return run_of(dir.path(), name);
  }
  /// Starts a run at eight ranks and kills them when one has stopped itself after a few steps.
  std::string cut_off(const std::string& name) const {
    std::vector<std::string> words = {trainctl_path(), "launch", "job.json",          "-s",
                                      "name=" + name,  "-s",     "parallelism.data=8"};
    words.insert(words.end(), mesh.begin(), mesh.end());
    Child child(words, dir.path(), {stop_variable({{.rank = 3, .step = 7}})});
    REQUIRE(eventually(60, [&] { return !run_of(dir.path(), name).empty() || !child.running(); }));
    const std::string run = run_of(dir.path(), name);
    for (const pid_t pid : await_stopped_rank(child, run, 8, 3)) ::kill(pid, SIGKILL);
    CHECK(child.wait(60).status != 0);
    return run;
  }
};

std::string resolved_lanes(const std::string& run) {
  return Json::parse(read_file(run + "/job.json")).at("parallelism").at("lanes").dump();
}

}  // namespace

TEST_CASE("a run grows and shrinks with the same bits, and beyond its lanes only where that is allowed",
          "[lanes]") {
  const Runs runs;
  const std::string whole = runs.launch("whole", "8");
  CHECK(resolved_lanes(whole) == "16");  // one for each micro-batch
  for (const std::string data : {"7", "3", "8", "16"}) {
    const std::string name = "to" + data;
    const std::string run = runs.cut_off(name);
    const Outcome resumed = runs.trainctl({"resume", run, "-s", "parallelism.data=" + data});
    INFO(resumed.err);
    REQUIRE(resumed.status == 0);
    CHECK_THAT(resumed.err, Contains(data == "8" ? "the same bits" : "with the same bits (same data order)"));
    CHECK(losses_of(run).back() == losses_of(whole).back());
    const Outcome diff = runs.trainctl({"inspect-ckpt", run, "--diff", whole});
    CHECK(diff.status == 0);
    CHECK_THAT(diff.out, Contains("identical"));
    std::cout << "data 8, killed, resumed at data " << data << ":\n" << diff.out;
  }
}

TEST_CASE("other lanes are refused, or allowed and recorded", "[lanes]") {
  const Runs runs;
  const std::string run = runs.launch("four", "4", {"-s", "parallelism.lanes=4", "--max-steps", "8"});
  const Outcome wider = runs.trainctl({"resume", run, "-s", "parallelism.data=8"});
  CHECK(wider.status == 3);
  CHECK_THAT(wider.err, Contains("E0305") && Contains("8 is more than 4") && Contains("--allow-other-bits"));
  const Outcome recut = runs.trainctl({"resume", run, "-s", "parallelism.lanes=8"});
  CHECK(recut.status == 3);
  CHECK_THAT(recut.err, Contains("E0605") && Contains("parallelism.lanes = 8 instead of the run's 4") &&
                            Contains("--allow-other-bits"));
  CHECK(events_of(run, "change").empty());
  // The flag alone changes nothing; a given number of lanes is taken.
  const Outcome same = runs.trainctl({"resume", run, "--allow-other-bits", "--max-steps", "10"});
  INFO(same.err);
  REQUIRE(same.status == 0);
  CHECK(resolved_lanes(run) == "4");
  const Outcome given =
      runs.trainctl({"resume", run, "--allow-other-bits", "-s", "parallelism.lanes=8", "--max-steps", "12"});
  INFO(given.err);
  REQUIRE(given.status == 0);
  CHECK_THAT(given.err, Contains("parallelism.lanes 4 → 8 · changes numerics from here on"));
  // A width beyond the lanes takes lanes as a launch does.
  const Outcome grown = runs.trainctl({"resume", run, "--allow-other-bits", "-s", "parallelism.data=16"});
  INFO(grown.err);
  REQUIRE(grown.status == 0);
  CHECK_THAT(grown.err, Contains("sums rounded in another order"));
  CHECK(resolved_lanes(run) == "16");
  const auto changes = events_of(run, "change");
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].at("step") == 10);
  CHECK(changes[1].at("changes")[0].at("path") == "parallelism.lanes");
  CHECK(changes[1].at("changes")[0].at("now") == "16");
  for (const std::string command : {"status", "inspect-ckpt"}) {
    const Outcome said = runs.trainctl({command, run});
    CHECK_THAT(said.out, Contains("parallelism.lanes 4 → 8") && Contains("parallelism.lanes 8 → 16"));
  }
  REQUIRE(runs.trainctl({"report", run}).status == 0);
  CHECK_THAT(read_file(run + "/report.html"), Contains("parallelism.lanes 8 → 16"));
  CHECK(losses_of(run).size() == 60);
}
