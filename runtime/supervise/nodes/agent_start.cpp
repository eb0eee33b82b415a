#include "runtime/supervise/nodes/agent_start.h"

#include <fmt/format.h>

#include "runtime/machine/mpirun.h"
#include "runtime/run/wire/environment.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {

std::vector<std::string> agent_words(const AgentProgram& agent, const std::string& name) {
  std::vector<std::string> words = {"env", fmt::format("{}={}", kRunVariable, agent.run_directory)};
  if (!name.empty()) words.push_back(fmt::format("{}={}", kNodeVariable, name));
  words.insert(words.end(), {agent.program, "node", agent.run_directory, "--mpirun", agent.mpirun});
  if (!name.empty()) words.insert(words.end(), {"--name", name});
  return words;
}

std::vector<std::string> shell_words(const AgentStart& start, const AgentProgram& agent,
                                     const std::string& name) {
  std::vector<std::string> words = start.shell;
  words.insert(words.end(),
               {name, "exec " + shell_text({agent_words(agent, name), {}}) + " </dev/null >/dev/null"});
  return words;
}

std::string describe_agent_start(const AgentStart& start, const AgentProgram& agent,
                                 const std::vector<std::string>& nodes) {
  switch (start.way) {
    case AgentStart::Way::here: return "";
    case AgentStart::Way::shell: return shell_text({shell_words(start, agent, nodes.front()), {}});
    case AgentStart::Way::slurm:
      return shell_text({agent_step_command({.nodes = int(nodes.size()),
                                             .logs = agent.run_directory + "/logs",
                                             .program = agent_words(agent, "")}),
                         {}});
    case AgentStart::Way::awaited:
      return shell_text({{agent.program, "node", agent.run_directory, "--name", nodes.front()}, {}});
  }
  return "";
}

}  // namespace trainctl
