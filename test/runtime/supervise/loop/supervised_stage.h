// What tests of a supervisor's parts share: a run of two nodes in a temporary folder, with its records.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/console.h"
#include "runtime/supervise/loop/supervised_run.h"
#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

/// Nodes "a" and "b" with one rank each, whose agents something else starts.
inline SupervisePlan plan_of_two_nodes() {
  SupervisePlan plan;
  plan.run_id = plan.name = "two";
  plan.nodes.nodes = {{.name = "a", .slots = 1}, {.name = "b", .slots = 1}};
  plan.nodes.one_machine = false;
  plan.nodes.start.way = AgentStart::Way::awaited;
  JobSpec& job = plan.job.job;
  job.parallelism.world_size = job.parallelism.data = 2;
  job.schedule.total_steps = 30;
  return plan;
}

struct SupervisedStage {
  /// `real`: time is the real one, not that of `clock`.
  explicit SupervisedStage(SupervisePlan given = plan_of_two_nodes(), bool real = false)
      : plan(std::move(given)) {
    real_file_system().make_directory(directory.file("logs"));
    real_file_system().make_directories(directory.checkpoints(plan.job.job.checkpoint));
    run.emplace(plan, directory, real_file_system(), real ? real_clock() : clock, console);
  }
  /// The recorded events of that kind, in order. A thread of its own writes them.
  std::vector<Json> events(const std::string& kind) {
    run->log.await_files();
    std::vector<Json> list;
    for (const std::string& line : lines_of(real_file_system(), directory.events()))
      if (Json event = Json::parse(line); event.at("kind") == kind) list.push_back(event);
    return list;
  }
  int64_t printed(const std::string& words) const {
    int64_t count = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
    return count;
  }

  const TemporaryFolder folder;
  const RunDirectory directory{folder.path()};
  HandClock clock;
  std::string text;  ///< of the console
  TerminalConsole console{{.write = [this](const std::string& part) { text += part; }}};
  SupervisePlan plan;
  std::optional<SupervisedRun> run;
};

}  // namespace trainctl::test
