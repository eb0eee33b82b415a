// `trainctl node`: the agent of one node. It owns every process of a run on its node, tells the supervisor
// what happens there, obeys its orders, and ends everything when it has heard nothing for the grace time.
#pragma once
#include <functional>
#include <string>

namespace trainctl {

struct AgentOptions {
  std::string
      run_directory;  ///< holds supervisor.json, which says where the supervisor listens and holds the token
  std::string name;   ///< of this node, as the supervisor calls it; "": SLURMD_NODENAME, else the host's name
  std::string connect;  ///< "HOST:PORT" of the supervisor where another address leads to it than its own; "": its own
  std::string mpirun;  ///< looked for on PATH; hello says whether it is here
  /// Starts a supervisor of the run on this node, of that name; `why` is one sentence. Must not block.
  std::function<void(const std::string& node, const std::string& why)> take_over;
  /// Called last, when nothing of the run is left here and it heard nothing for the grace time.
  std::function<void()> abandoned;
};

/// Runs until the supervisor ends it or is gone for the grace time. Writes to RUN/logs/node-NAME.log, never
/// to the pipe of the process that started it. Returns the exit status.
int run_agent(const AgentOptions& options);

/// What mpirun starts as its remote shell: asks the agent of this node to have `command` run on `host` and
/// lives as long as it.
int run_remote_shell(const std::string& host, const std::string& command);

/// supervisor.json of a run, mode 0600: where its supervisor listens. A supervisor that ends removes it. What
/// it was asked to do with the Slurm job around it is there for one that takes its place.
struct SupervisorFile {
  std::string address, token;
  bool requeue = false;  ///< SlurmTies
  std::string chain;
  std::string to_json() const;
  static SupervisorFile from_json(const std::string& text);  ///< Error(kIo)
};
std::string supervisor_file(const std::string& run_directory);

}  // namespace trainctl
