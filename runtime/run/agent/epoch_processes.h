// EpochProcesses are the processes that an agent starts on its node for one epoch: ranks, or mpirun, or its
// daemons. All of them, and what they start, carry the epoch's mark in their environment; by it they are
// killed. One thread; the caller polls.
#pragma once
#include <poll.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/machine/process.h"

namespace trainctl {

class EpochProcesses {
 public:
  struct Handler {
    std::function<void(int rank, std::string&& text)> output;
    /// A process has ended, and its last output has not been read: what it said elsewhere counts before its
    /// end.
    std::function<void()> ending;
    /// `request`: see start_shell; 0 for ranks and for mpirun, which has the rank -1. `status`: from waitpid.
    std::function<void(int rank, int64_t request, int status)> ended;
  };
  /// `mark`: value of kAttemptVariable. `clock` must outlive this object.
  EpochProcesses(std::string mark, Clock& clock, Handler handler);

  // ---- starts; `environment` has the mark. Error(kLauncher).
  void start_rank(int rank, const std::vector<std::string>& argv, const Environment& environment);
  void start_mpirun(const std::vector<std::string>& argv, const Environment& environment);
  /// Starts a command of mpirun for a daemon. Does nothing if `request` was started before: a supervisor that
  /// took over may get a request again.
  void start_shell(int64_t request, const std::string& command, const Environment& environment);

  /// Adds every descriptor to poll for. `hold_output`: output stays in the pipes.
  void add_to(std::vector<pollfd>& fds, bool hold_output) const;
  /// Calls the handler for what has happened. Call after every poll.
  void watch(bool hold_output);
  /// Whether `pid` is a child of this object whose end has not been reported.
  bool owns(pid_t pid) const;

  /// Kills every marked process, again and again until none is left, for at most `tries` times 5 ms.
  void kill_now(int tries);
  /// Begins to kill every marked process. Call kill_step until it returns a number.
  void begin_to_kill();
  /// Goes on with the kill at its time. Returns how many processes are left, if none is or if the limit has
  /// passed: such a process hangs in the kernel. nullopt: not yet, or no kill has begun.
  std::optional<int> kill_step();
  /// When kill_step must be called at the latest; infinity: no kill has begun.
  double deadline_s() const;

 private:
  struct Child {
    int rank;         ///< -1: mpirun, or a daemon of it
    int64_t request;  ///< that started it, 0 for none
    std::unique_ptr<ChildProcess> process;
    bool has_ended = false;
  };
  int kill_marked() const;
  void pass_output(Child& child);

  const std::string mark_;
  Clock& clock_;
  const Handler handler_;
  std::vector<Child> children_;
  std::optional<double> killing_s_;  ///< since when
  double next_kill_s_ = 0;
};

}  // namespace trainctl
