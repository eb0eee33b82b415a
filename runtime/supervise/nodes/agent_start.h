// How an agent comes to a node: the command that starts it. Pure.
#pragma once
#include <string>
#include <vector>

namespace trainctl {

struct AgentStart {
  /// slurm: one srun for all of them; a lost one gets a srun of its own.
  enum class Way { here, shell, slurm, awaited } way = Way::here;  ///< awaited: something else starts them
  std::vector<std::string> shell = {"ssh"};  ///< a remote shell with ssh's arguments: SHELL HOST COMMAND
};

struct AgentProgram {
  std::string program, run_directory, mpirun;
};

/// `env ... PROGRAM node RUN ...`; without a name for the agents that learn theirs from Slurm.
std::vector<std::string> agent_words(const AgentProgram& agent, const std::string& name);

/// `SHELL NAME 'exec env ... PROGRAM node RUN ...'`
std::vector<std::string> shell_words(const AgentStart& start, const AgentProgram& agent,
                                     const std::string& name);

/// For people: the command that starts the agent of the first of `nodes`, or of all under Slurm, quoted for a
/// shell; where something else starts the agents, the command that it has to run.
std::string describe_agent_start(const AgentStart& start, const AgentProgram& agent,
                                 const std::vector<std::string>& nodes);

}  // namespace trainctl
