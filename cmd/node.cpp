// trainctl node, trainctl remote: what launch and mpirun start on the nodes of a run; hidden from the help.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "cmd/commands.h"
#include "runtime/run/agent.h"
#include "runtime/run/environment.h"
#include "runtime/supervise/batch_host.h"

extern char** environ;

namespace trainctl::cmd {
namespace {

struct Options {
  AgentOptions agent;
  bool give_back = false;
};

/// The environment as it is now, without the marks of an agent.
std::vector<std::string> unmarked_environment() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable; ++variable)
    if (const std::string text = *variable;
        !text.starts_with(kNodeVariable + std::string("=")) &&
            !text.starts_with(kRunVariable + std::string("=")))
      environment.push_back(text);
  return environment;
}

/// This process goes on as one that only waits to give the Slurm job back: no new agent takes it for its
/// like.
void go_on_to_give_back(const std::string& run, std::vector<std::string> environment) {
  std::vector<char*> variables;
  for (std::string& variable : environment) variables.push_back(variable.data());
  variables.push_back(nullptr);
  std::string words[] = {"trainctl", "node", run, "--give-back"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  ::execve("/proc/self/exe", argv, variables.data());
}

int node(Options options) {
  const auto allocation = allocation_from_environment(process_variables());
  if (options.give_back && allocation) give_back_lost_job(*allocation);
  if (options.give_back) return kExitDone;
  if (allocation && allocation->nodes.size() > 1)
    options.agent.abandoned = [run = options.agent.run_directory, environment = unmarked_environment()] {
      go_on_to_give_back(run, environment);
    };
  return run_agent(options.agent);
}

}  // namespace

void add_node(CommandLine& app, Context& context) {
  auto options = std::make_shared<Options>();
  CommandLine command = app.add_subcommand("node", "the agent of a node (started by launch)");
  command.hide();
  command.add_option("RUN", options->agent.run_directory, "run directory").required();
  command.add_option("--name", options->agent.name, "of this node, as the supervisor calls it");
  command.add_option("--connect", options->agent.connect,
                     "HOST:PORT of the supervisor, where its own address does not lead to it");
  command.add_option("--mpirun", options->agent.mpirun, "the MPI launcher");
  command.add_flag("--give-back", options->give_back, "wait until the Slurm job can be given back to the "
      "queue");
  when_chosen(command, context, [options] { return node(*options); });
}

int remote_shell(int argc, const char* const* argv) {
  // HOST and then words that are quoted for a shell: joined by spaces they are one command line again.
  std::string command;
  for (int i = 3; i < argc; ++i) command += (i > 3 ? " " : "") + std::string(argv[i]);
  return run_remote_shell(argv[2], command);
}

}  // namespace trainctl::cmd
