// Goal: what surrounds a command (signals that it was told to ignore, closed or full streams, a folder that was
// removed) changes no result and no file of a run, or is named in a sentence.
// Method: the real program, started by a shell that makes these surroundings.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

struct Shell {
  TemporaryFolder dir;
  std::string folder = std::filesystem::canonical(dir.path()).string(), job = folder + "/job.json";

  Shell() { write_file(job, tiny_spec("tiny")); }
  /// "$0" of the script is the program.
  Child start(const std::string& script) const {
    return Child({"bash", "-c", script, trainctl_path()}, folder);
  }
  Outcome run(const std::string& script) const { return start(script).wait(120); }
  std::string launch(const std::string& name) const {
    return "\"$0\" launch " + job + " --run-dir " + folder + "/runs -s name=" + name;
  }
};

/// Lines of the run's records that are no JSON objects.
int foreign_lines(const std::string& run) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(run)) {
    if (file.path().extension() != ".jsonl") continue;
    std::ifstream lines(file.path());
    for (std::string line; std::getline(lines, line);) count += !line.starts_with("{");
  }
  return count;
}

}  // namespace

TEST_CASE("a signal that is ignored when a run starts stays ignored", "[input]") {
  const Shell shell;
  Child child = shell.start("trap '' HUP; exec " + shell.launch("nohup"));
  REQUIRE(eventually(60, [&] {
    const std::string run = run_of(shell.folder, "nohup");
    return !child.running() || (!run.empty() && line_count(run + "/metrics.jsonl") >= 1);
  }));
  child.signal(SIGHUP);
  const Outcome ended = child.wait(120);
  INFO(ended.err);
  CHECK(ended.status == 0);
  CHECK(losses_of(run_of(shell.folder, "nohup")).size() == 20);
}

TEST_CASE("closed and full streams change no run", "[input]") {
  const Shell shell;
  REQUIRE(shell.run(shell.launch("whole")).status == 0);
  const std::string whole = run_of(shell.folder, "whole");
  const std::pair<const char*, const char*> kinds[] = {
      {"closed", " <&- >&- 2>&-"},
      {"full", " 2>/dev/full"},
      {"gone", " --max-steps 20 2>&1 | head -n 1; exit ${PIPESTATUS[0]}"},
      {"result", " --json 2>/dev/null | true; exit ${PIPESTATUS[0]}"}};
  for (const auto& [name, streams] : kinds) {
    CAPTURE(name);
    CHECK(shell.run(shell.launch(name) + streams).status == 0);
    const std::string run = run_of(shell.folder, name);
    CHECK(foreign_lines(run) == 0);
    CHECK(losses_of(run) == losses_of(whole));
    CHECK(shell.run("\"$0\" inspect-ckpt " + run + " --diff " + whole).status == 0);
  }
}

TEST_CASE("a low limit on open files is raised, and one that cannot be is named before anything starts",
          "[input]") {
  const Shell shell;
  const Outcome raised = shell.run("ulimit -Sn 20; " + shell.launch("soft") + " --max-steps 4");
  INFO(raised.err);
  CHECK(raised.status == 0);
  const Outcome low = shell.run("ulimit -n 20; " + shell.launch("low"));
  CHECK(low.status == 5);
  CHECK_THAT(low.err, Contains("this process may open 20 files (ulimit -Hn), and a run of"));
}

TEST_CASE("a run starts and goes on though the current folder was removed", "[input]") {
  const Shell shell;
  const std::string gone = "mkdir gone; cd gone; rmdir ../gone; ";
  const Outcome launched = shell.run(gone + shell.launch("far") + " --max-steps 8");
  INFO(launched.err);
  CHECK(launched.status == 0);
  const Outcome resumed = shell.run(gone + "\"$0\" resume " + run_of(shell.folder, "far"));
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  const Outcome refused = shell.run(gone + "\"$0\" status far");
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err,
             Contains("the current folder was removed, so that far leads nowhere; cd to another one"));
}

TEST_CASE("an empty name is refused in a sentence", "[input]") {
  const Shell shell;
  for (const char* command : {"status ''", "stop ''", "resume ''", "report ''", "inspect-ckpt ''",
                              "sample '' -p x", "list --run-dir ''"}) {
    CAPTURE(command);
    const Outcome refused = shell.run(std::string("\"$0\" ") + command);
    INFO(refused.err);
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, Contains("empty") && !Contains("internal error"));
  }
}

TEST_CASE("nodes that cannot be what is meant are named before anything starts", "[input]") {
  const Shell shell;
  const auto refusal = [&](const std::string& before, const std::string& behind) {
    const Outcome refused = shell.run(before + shell.launch("far") + behind);
    CHECK((refused.status == 3 || refused.status == 5));
    CHECK(run_of(shell.folder, "far") == "");
    return refused.err;
  };
  for (const char* other : {"127.0.0.1", "LOCALHOST"})
    CHECK_THAT(refusal("", std::string(" -s 'launcher.hosts=[\"localhost:2\",\"") + other + ":2\"]'"),
               Contains(std::string("localhost and ") + other +
                        " are two names of one machine; name it once, with all its slots (localhost:4)"));
  // A shell that outlived its Slurm job.
  CHECK_THAT(refusal("export SLURM_JOB_ID=77 SLURM_JOB_NODELIST=gpu01.invalid,gpu02.invalid; ", ""),
             Contains("Slurm job 77") && Contains("launcher.hosts"));
}
