// trainctl node, trainctl remote: what launch and mpirun start on the nodes of a run; hidden from the help.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "cmd/runs.h"
#include "runtime/machine/process.h"
#include "runtime/run/agent/agent.h"
#include "runtime/run/wire/environment.h"
#include "runtime/supervise/slurm/batch_host.h"

extern char** environ;

namespace trainctl::cmd {
namespace {

struct NodeOptions {
  AgentOptions agent;
  bool give_back = false, await_supervisor = false;
};

using WordList = std::vector<std::string>;

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

/// This process continues as one that only does `word`, so that a new agent does not take it for another
/// agent.
void go_on_as(const std::string& word, const std::string& run, WordList environment) {
  become_own_program({"trainctl", "node", run, word}, std::move(environment));
}

/// `resume` on this node, in a session of its own. The launcher of the run need not be on PATH here.
void start_supervisor(const std::string& run, const std::string& node, const std::string& mpirun,
                      WordList environment, const std::string& why) {
  const std::string folder = mpirun.substr(0, mpirun.rfind('/') + 1);
  for (std::string& variable : environment)
    if (variable.starts_with("PATH=") && folder.size() > 1)
      variable += ":" + folder.substr(0, folder.size() - 1);
  start_detached({own_program(), "resume", run, "--take-over", why}, environment,
                 run + "/logs/supervisor-" + node + ".log");
}

/// Waits for a supervisor that this process has started as an agent: under Slurm it would end with the last
/// process of its step here that Slurm knows.
int await_supervisor() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
  await_children();
  return kExitDone;
}

int node(NodeOptions options) {
  if (options.await_supervisor) return await_supervisor();
  const auto allocation = allocation_from_environment(process_variables());
  if (options.give_back && allocation) give_back_lost_job(*allocation);
  if (options.give_back) return kExitDone;
  const WordList environment = unmarked_environment();
  const std::string run = options.agent.run_directory;
  bool started = false;
  options.agent.take_over = [&](const std::string& name, const std::string& why) {
    start_supervisor(run, name, options.agent.mpirun, environment, why);
    started = true;
  };
  if (allocation && allocation->nodes.size() > 1)
    options.agent.abandoned = [&] { go_on_as("--give-back", run, environment); };
  const int status = run_agent(options.agent);
  if (started) go_on_as("--await-supervisor", run, environment);
  return status;
}

}  // namespace

void add_node(CommandLine& app, Context& context) {
  auto options = std::make_shared<NodeOptions>();
  CommandLine command = app.add_subcommand("node", "the agent of a node (started by launch)");
  command.hide();
  command.add_option("RUN", options->agent.run_directory, "run directory").required();
  command.add_option("--name", options->agent.name, "name of this node at the supervisor");
  command.add_option("--connect", options->agent.connect,
                     "HOST:PORT of the supervisor, if its recorded address cannot be reached from here");
  command.add_option("--mpirun", options->agent.mpirun, "the MPI launcher");
  command.add_flag("--give-back", options->give_back, "wait until the Slurm job can be given back to the "
      "queue");
  command.add_flag("--await-supervisor", options->await_supervisor,
                   "wait for the supervisor that this process started");
  when_chosen(command, context, [options] { return node(*options); });
}

int remote_shell(int argc, const char* const* argv) {
  // HOST and then words that are quoted for a shell. Joined by spaces they are the command line.
  std::string command;
  for (int i = 3; i < argc; ++i) command += (i > 3 ? " " : "") + std::string(argv[i]);
  return run_remote_shell(argv[2], command);
}

}  // namespace trainctl::cmd
