// The commands that start the agents of a run on its nodes. Pure.
#pragma once
#include <string>
#include <vector>

namespace trainctl {

struct AgentStart {
  /// here: a child process. shell: a remote shell. slurm: one srun for all agents; an agent that is lost is
  /// started again by a srun of its own. awaited: something else starts the agents.
  enum class Way { here, shell, slurm, awaited } way = Way::here;
  std::vector<std::string> shell = {"ssh"};  ///< a remote shell, called like ssh: SHELL HOST COMMAND
};

struct AgentProgram {
  std::string program, run_directory, mpirun;
};

/// The command line `env ... PROGRAM node RUN ...`. `name` "": the agents take their names from Slurm.
std::vector<std::string> agent_words(const AgentProgram& agent, const std::string& name);

/// The command line `SHELL NAME 'exec env ... PROGRAM node RUN ...'`.
std::vector<std::string> shell_words(const AgentStart& start, const AgentProgram& agent,
                                     const std::string& name);

/// For people, quoted for a shell: the command that starts the agent of the first of `nodes` (slurm: of all
/// of them; awaited: the command to run on a node; here: "").
std::string describe_agent_start(const AgentStart& start, const AgentProgram& agent,
                                 const std::vector<std::string>& nodes);

}  // namespace trainctl
