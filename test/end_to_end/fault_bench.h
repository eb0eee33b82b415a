// An undisturbed run, and runs of the same job that a test disturbs and compares with it. For files of
// Catch2.
#pragma once
#include <signal.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

/// What is set on a mesh of at most four ranks.
using MeshFields = std::vector<std::string>;
/// The first one is that of the run.
inline const std::vector<MeshFields> kMeshes = {
    {},
    {"parallelism.data=1", "parallelism.pipeline=4"},
    {"parallelism.data=4", "parallelism.pipeline=1", "parallelism.zero_stage=3"},
    {"parallelism.data=1", "parallelism.pipeline=1"},
    {"parallelism.data=2", "parallelism.pipeline=1", "parallelism.zero_stage=0"},
    {"parallelism.pipeline_schedule=interleaved", "parallelism.virtual_stages=2"},
    {"parallelism.data=1", "parallelism.pipeline=4", "parallelism.pipeline_schedule=zb-h1"},
    {"parallelism.data=3", "parallelism.pipeline=1"}};

/// A folder with the job and its undisturbed run.
struct FaultBench {
  TemporaryFolder dir;
  std::string whole;                      ///< the undisturbed run
  const std::vector<MeshFields>& meshes;  ///< on which a run may go on

  explicit FaultBench(const std::string& spec = tiny_spec("tiny"),
                      const std::vector<MeshFields>& on = kMeshes)
      : meshes(on) {
    write_file(dir.path() + "/job.json", spec);
    const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "name=whole"});
    INFO(o.err);
    REQUIRE(o.status == 0);
    whole = run_of(dir.path(), "whole");
  }

  /// Starts a run and waits until it has completed `steps` steps.
  std::unique_ptr<Child> start(const std::string& name, int steps, std::vector<std::string> more = {},
                               const std::vector<std::string>& environment = {}) const {
    std::vector<std::string> words = {trainctl_path(), "launch", "job.json", "-s", "name=" + name};
    words.insert(words.end(), more.begin(), more.end());
    auto child = std::make_unique<Child>(words, dir.path(), environment);
    REQUIRE(eventually(60, [&] {
      const std::string run = run_of(dir.path(), name);
      return !child->running() || (!run.empty() && line_count(run + "/metrics.jsonl") >= steps);
    }));
    return child;
  }

  /// A run whose rank 0 has stopped itself in a step, so that it does not end before the test has acted.
  struct Held {
    std::unique_ptr<Child> child;
    std::string run;
    std::vector<pid_t> ranks;
    void go_on() const { REQUIRE(::kill(ranks[0], SIGCONT) == 0); }
  };
  Held hold(const std::string& name, int64_t step, std::vector<std::string> more = {}) const {
    Held held;
    held.child = start(name, int(step) - 1, more, {stop_variable({{.rank = 0, .step = step}})});
    held.run = run_of(dir.path(), name);
    held.ranks = await_stopped_rank(*held.child, held.run, 4, 0);
    return held;
  }
  /// Asks the run to stop by these signals; it goes on when its ranks have heard it.
  void stop(const Held& held, const std::vector<int>& signals) const {
    for (const int number : signals) held.child->signal(number);
    await_stop_heard(*held.child, held.run, 4, 0);
    held.go_on();
  }

  /// Agents without a supervisor would end it, too, but not before the grace is over.
  void require_nothing_left(const std::string& run) const {
    for (const pid_t pid : rank_pids(run, 8)) CHECK(eventually(20, [&] { return !rank_alive(pid); }));
    // Nor is an agent, or a launcher.
    CHECK(eventually(20, [&] { return processes_marked(kRunVariable, run).empty(); }));
  }

  void resume_and_compare(const std::string& run, const std::vector<std::string>& mesh) const {
    std::vector<std::string> arguments = {"resume", run};
    for (const std::string& m : mesh) arguments.insert(arguments.end(), {"-s", m});
    const Outcome o = run_trainctl(dir.path(), arguments);
    INFO(o.err);
    REQUIRE(o.status == 0);
    check_like_whole(run);
  }

  /// The same bits.
  void check_like_whole(const std::string& run) const {
    CHECK(losses_of(run) == losses_of(whole));
    const Outcome diff = run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", whole});
    INFO(diff.out << diff.err);
    CHECK(diff.status == 0);
  }
};

}  // namespace trainctl::test
