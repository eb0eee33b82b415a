// `trainctl node`: the agent of one node. The agent owns every process of a run on its node, reports events
// to the supervisor, obeys the supervisor's orders, and ends all processes when no supervisor was heard for
// the grace time.
#pragma once
#include <functional>
#include <string>

namespace trainctl {

/// The limit of one call. Well below what AgentState takes for a pause of its own: an address that swallows calls
/// must not keep the grace from passing.
constexpr double kDialLimitS = 0.5;

struct AgentOptions {
  std::string
      run_directory;  ///< has supervisor.json, with the supervisor's address and token
  std::string name;   ///< the supervisor's name for this node; "": SLURMD_NODENAME, else the host name
  /// "HOST:PORT" to dial instead of the address in supervisor.json; "": dial that address.
  std::string connect;
  std::string mpirun;  ///< program to find on PATH; hello reports whether it was found
  /// Starts a supervisor of the run on this node. `node`: name of the node; `why`: one sentence. Must not
  /// block.
  std::function<void(const std::string& node, const std::string& why)> take_over;
  /// Called last, if the agent ended because it heard no supervisor for the grace time. No process of the run
  /// is left then.
  std::function<void()> abandoned;
};

/// Runs until the supervisor orders the end or was not heard for the grace time. Writes to
/// RUN/logs/node-NAME.log, never to the pipe of the process that started it. Returns the exit status.
int run_agent(const AgentOptions& options);

/// The program that mpirun starts as its remote shell. Asks the agent of this node to have `command` run on
/// `host`, waits for its end and returns its exit status.
int run_remote_shell(const std::string& host, const std::string& command);

}  // namespace trainctl
