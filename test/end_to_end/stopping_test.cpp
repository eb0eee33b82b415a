// Goal: whatever hangs in a file system, a run ends when a person wants it to, within the time of
// checkpoint.exit_timeout_seconds or at once; it says what was given up; a lost rank is healed all the same;
// and what hung publishes nothing of an older epoch when it goes on.
// Method: the real program with a preloaded library in which the rename to one name waits until the test lets
// it go on, or to status.json, in the supervisor's own thread. No test looks at the time: each waits for the
// end of the run while the rename still hangs, and asserts what was given up.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;

/// A run of four ranks; from its start on, or from hold() on, the rename to `name` hangs.
class HangingRun {
 public:
  enum From { start, later };
  explicit HangingRun(const std::vector<std::string>& more, const std::string& name = "step-00000008",
                      From from = start)
      : hold_(folder() + "/hold-" + name) {
    if (from == start) hold();
    write_file(folder() + "/job.json", tiny_spec("tiny"));
    const std::string library = fs::path(trainctl_path()).parent_path().string() +
                                "/test/support/refusing_calls/librefusing_calls.so";
    environment_ = {"LD_PRELOAD=" + library, "TRAINCTL_TEST_REFUSED_FOLDER=" + folder()};
    std::vector<std::string> words = {trainctl_path(), "launch", "job.json", "-s", "observability.run_id=r"};
    words.insert(words.end(), more.begin(), more.end());
    child_.emplace(words, folder(), environment_);
  }
  ~HangingRun() {
    release();
    trainctl::signal_marked(trainctl::kRunVariable, run(), SIGKILL);
  }
  HangingRun(const HangingRun&) = delete;
  HangingRun& operator=(const HangingRun&) = delete;

  std::string folder() const { return fs::canonical(dir_.path()).string(); }
  std::string run() const { return folder() + "/runs/r"; }
  Child& child() { return *child_; }
  void hold() { write_file(hold_, ""); }
  void release() { fs::remove(hold_); }
  void await_steps(int steps) {
    REQUIRE(
        eventually(60, [&] { return !child_->running() || line_count(run() + "/metrics.jsonl") >= steps; }));
  }
  void await_hang() {
    REQUIRE(eventually(60, [&] { return !child_->running() || fs::exists(folder() + "/held"); }));
    if (!child_->running()) FAIL("the run has ended: " << child_->wait(1).err);
  }
  bool is_saved(int64_t step) const { return fs::exists(fmt::format("{}/ckpt/step-{:08}", run(), step)); }
  Outcome trainctl(const std::vector<std::string>& words) {
    return run_trainctl(folder(), words, 120, environment_);
  }
  bool nothing_left() const {
    return eventually(20, [&] { return trainctl::processes_marked(trainctl::kRunVariable, run()).empty(); });
  }

 private:
  const TemporaryFolder dir_;
  const std::string hold_;
  std::vector<std::string> environment_;
  std::optional<Child> child_;
};

}  // namespace

TEST_CASE("a stop ends when its time is over, though a checkpoint is still being published", "[stopping]") {
  // The ranks train on while the rename of step 8 hangs.
  HangingRun run({"-s", "schedule.total_steps=100000", "-s",
                  "checkpoint.exit_timeout_seconds=15"});  // for the last save
  run.await_hang();
  run.child().signal(SIGTERM);
  const Outcome o = run.child().wait(60);
  INFO(o.err);
  CHECK(o.status == 7);
  CHECK_THAT(o.err, Contains("the last save, of step ") &&
                        Contains("failed: the file system of " + run.run() + "/ckpt has not answered for") &&
                        Contains("while publishing step 8") && Contains("the last checkpoint is step 4"));
  CHECK(run.nothing_left());
  run.release();
  const Outcome resumed = run.trainctl({"resume", "r", "--max-steps", "20"});
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK_THAT(resumed.err, Contains("checkpoint  step 4"));
}

TEST_CASE("a second interrupt and SIGQUIT end a run whose checkpoint is still being published",
          "[stopping]") {
  const int last = GENERATE(SIGINT, SIGQUIT);
  HangingRun run({"-s", "schedule.total_steps=100000", "-s", "checkpoint.exit_timeout_seconds=3600"});
  run.await_hang();
  run.child().signal(SIGINT);
  REQUIRE(eventually(60, [&] { return !events_of(run.run(), "stop_requested").empty(); }));
  // Two interrupts within 0.3 s are one.
  const double until_s = trainctl::real_clock().monotonic_s() + 0.4;
  REQUIRE(eventually(60, [&] { return trainctl::real_clock().monotonic_s() > until_s; }));
  run.child().signal(last);
  const Outcome o = run.child().wait(60);
  INFO(o.err);
  CHECK(o.status == 130);
  CHECK(run.nothing_left());
}

TEST_CASE("a lost rank is healed though a checkpoint is still being published; it is not published later",
          "[stopping]") {
  HangingRun run({"-s", "schedule.total_steps=100000", "-s", "fault_tolerance.max_restarts=1", "-s",
                  "checkpoint.keep_last=3000"});  // for long, and with room for them on a small disk
  run.await_hang();
  REQUIRE(::kill(rank_pids(run.run(), 4).at(1), SIGKILL) == 0);
  REQUIRE(
      eventually(60, [&] { return !run.child().running() || !events_of(run.run(), "recovered").empty(); }));
  REQUIRE(run.child().running());
  CHECK_FALSE(run.is_saved(8));
  CHECK(run.is_saved(4));
  const auto failed = events_of(run.run(), "save_failed");
  REQUIRE_FALSE(failed.empty());
  CHECK_THAT(failed[0]["reason"].get<std::string>(), Contains("has not answered for"));
  run.release();  // the old rename goes on; its epoch is over
  REQUIRE(eventually(60, [&] { return run.is_saved(8); }));
  run.child().signal(SIGTERM);
  const Outcome o = run.child().wait(60);
  INFO(o.err);
  CHECK(o.status == 75);
  CHECK_THAT(read_file(run.run() + "/ckpt/step-00000008/COMMIT"), Contains("\"epoch\":2"));
}

TEST_CASE("a supervisor that hangs in a file system itself ends with a second interrupt", "[stopping]") {
  HangingRun run({"-s", "schedule.total_steps=100000", "-s", "checkpoint.every_steps=0"}, "status.json",
                 HangingRun::later);
  run.await_steps(3);
  run.hold();
  run.await_hang();
  run.child().signal(SIGQUIT);
  const Outcome o = run.child().wait(60);
  INFO(o.err);
  CHECK(o.status == 130);
  CHECK_THAT(o.err, Contains("the supervisor hangs in a call of the file system of") &&
                        Contains("trainctl resume r"));
  CHECK(run.nothing_left());
}
