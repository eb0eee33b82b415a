#include "test/end_to_end/shown_runs.h"

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "test/end_to_end/jobs.h"

namespace trainctl::test {
namespace {

/// Sixty steps of four hundred. With so few saves none is given up where publishing is slower than training.
std::vector<std::string> launch_words(const std::string& id, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"launch",      "job.json",
                                    "-s",          "observability.run_id=" + id,
                                    "-s",          "schedule.total_steps=400",
                                    "-s",          "checkpoint.every_steps=10",
                                    "--max-steps", "60"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

std::string run_with_failure(const TemporaryFolder& dir, const std::string& id) {
  std::vector<std::string> words = launch_words(id, {"-s", "fault_tolerance.max_restarts=2"});
  words.insert(words.begin(), trainctl_path());
  // Seven steps behind a checkpoint, which are lost.
  Child child(words, dir.path(), {stop_variable({{.rank = 2, .step = 18}})});
  const std::string run = dir.path() + "/runs/" + id;
  const std::vector<pid_t> pids = await_stopped_rank(child, run, 4, 2);
  REQUIRE(eventually(60, [&] { return std::filesystem::exists(run + "/ckpt/step-00000010"); }));
  REQUIRE(::kill(pids[2], SIGKILL) == 0);
  const Outcome o = child.wait(120);
  INFO(o.err);
  REQUIRE(o.status == 0);
  return run;
}

const TemporaryFolder& shown_runs() {
  static const TemporaryFolder dir;
  static const bool made = [] {
    write_file(dir.path() + "/job.json", tiny_spec("shown"));
    run_with_failure(dir, "hurt");
    const auto launch = [](const std::string& id, const std::vector<std::string>& more) {
      return run_trainctl(dir.path(), launch_words(id, more)).status;
    };
    REQUIRE(launch("narrow", {"-s", "parallelism.world_size=1", "-s", "parallelism.data=1", "-s",
                              "parallelism.pipeline=1"}) == 0);
    REQUIRE(launch("other", {"-s", "schedule.lr=1e-3"}) == 0);
    return true;
  }();
  REQUIRE(made);
  return dir;
}

Outcome ran(const std::vector<std::string>& words) { return run_trainctl(shown_runs().path(), words); }

std::string folder_of(const std::string& run) { return shown_runs().path() + "/runs/" + run; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace trainctl::test
