// trainctl node, trainctl remote: what launch and mpirun start on the nodes of a run; hidden from the help.
#include <memory>

#include "cmd/commands.h"
#include "runtime/run/agent.h"

namespace trainctl::cmd {

void add_node(CommandLine& app, Context& context) {
  auto options = std::make_shared<AgentOptions>();
  CommandLine command = app.add_subcommand("node", "the agent of a node (started by launch)");
  command.hide();
  command.add_option("RUN", options->run_directory, "run directory").required();
  command.add_option("--name", options->name, "of this node, as the supervisor calls it");
  command.add_option("--connect", options->connect, "HOST:PORT of the supervisor, where its own address does not lead to it");
  command.add_option("--mpirun", options->mpirun, "the MPI launcher");
  when_chosen(command, context, [options] { return run_agent(*options); });
}

int remote_shell(int argc, const char* const* argv) {
  // HOST and then words that are quoted for a shell: joined by spaces they are one command line again.
  std::string command;
  for (int i = 3; i < argc; ++i) command += (i > 3 ? " " : "") + std::string(argv[i]);
  return run_remote_shell(argv[2], command);
}

}  // namespace trainctl::cmd
