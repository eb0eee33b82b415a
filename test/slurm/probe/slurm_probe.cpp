// What the Slurm tests run on the cluster's nodes: one call of trainctl's Slurm layer, and its result as
// text.
//
//   where                    the allocation as its environment gives it, one line
//   submit SCRIPT [COUNT]    the ids, a line each
//   job ID                   id, state and reason; nodes; seconds left; end: a line each
//   requeue ID, cancel ID, cancel-waiting NAME
//   known NODE...            those that Slurm knows, a line each
//   agents RUN COUNT         in a batch script: starts one agent a node; starts one more on the node named in
//                            RUN/restart once that file is there; ends when the first step ends
//   agent-process            the agent: says what it was given, and stays
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/supervise/slurm/slurm_commands.h"
#include "runtime/supervise/slurm/slurm_nodes.h"

using namespace trainctl;

namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

void where() {
  const auto found = allocation_from_environment(process_variables());
  if (!found) {
    fmt::print("no allocation\n");
    return;
  }
  const char* places[] = {"script", "step", "login"};
  std::string nodes;
  for (const SlurmNode& node : found->nodes) nodes += fmt::format(" {}:{}", node.name, node.cpus);
  fmt::print("job {} {} place {} node {} batch {} nodes{} gpus {} switches {} restarts {}\n", found->job_id,
             found->job_name, places[int(found->place)], or_dash(found->this_node),
             or_dash(found->batch_host()), nodes,
             found->gpus_on_this_node ? std::to_string(*found->gpus_on_this_node) : "-",
             or_dash(found->switch_path), found->restart_count);
}

void job(const SlurmCommands& slurm, const std::string& id) {
  const auto found = slurm.job(id);
  if (!found) {
    fmt::print("unknown\n");
    return;
  }
  const double now_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  fmt::print("{} {} {}\n{}\n{}\n{}\n", found->id, found->state_word, found->reason,
             compress_node_list(found->nodes),
             found->end_unix_s ? std::to_string(*found->end_unix_s - now_s) : "-",
             found->end_unix_s ? std::to_string(*found->end_unix_s) : "-");
}

AgentStep step_on(const std::string& program, const std::string& run, int nodes,
                  std::vector<std::string> only_on) {
  return {.nodes = nodes,
          .only_on = std::move(only_on),
          .logs = run + "/logs",
          .program = {program, "agent-process"}};
}

int agents(const std::string& program, const std::string& run, int count) {
  const std::vector<std::string> unset = names_of(misleads_srun);
  ChildProcess all(agent_step_command(step_on(program, run, count, {})), {}, unset);
  std::unique_ptr<ChildProcess> one;
  const std::string wanted = run + "/restart";
  for (;;) {
    std::string node;
    if (!one && std::ifstream(wanted) >> node)
      one = std::make_unique<ChildProcess>(agent_step_command(step_on(program, run, 1, {node})),
                                           Environment{}, unset);
    std::cerr << all.read_output() << (one ? one->read_output() : "");
    if (all.reap()) return 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void agent_process() {
  const auto value = [](const char* name) { return process_variables()(name).value_or("none"); };
  fmt::print("agent: tasks {} gpus {} of {}\n", value("SLURM_STEP_TASKS_PER_NODE").substr(0, 1),
             value("CUDA_VISIBLE_DEVICES"), value("SLURM_GPUS_ON_NODE"));
  std::fflush(stdout);
  ::pause();
}

int act(const std::vector<std::string>& words) {
  const SlurmCommands slurm;
  const std::string& verb = words.at(1);
  if (verb == "where") where();
  if (verb == "submit")
    for (const std::string& id : slurm.submit(words.at(2), words.size() > 3 ? std::stoi(words[3]) : 1))
      fmt::print("{}\n", id);
  if (verb == "job") job(slurm, words.at(2));
  if (verb == "requeue") slurm.requeue(words.at(2));
  if (verb == "cancel") slurm.cancel(words.at(2));
  if (verb == "cancel-waiting") slurm.cancel_waiting(words.at(2));
  if (verb == "known")
    for (const std::string& node : slurm.known_of({words.begin() + 2, words.end()})) fmt::print("{}\n", node);
  if (verb == "agents") return agents(words.at(0), words.at(2), std::stoi(words.at(3)));
  if (verb == "agent-process") agent_process();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return act({argv, argv + argc});
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_status(error.code());
  }
}
