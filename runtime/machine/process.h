// Child processes: started without copying the parent's memory, found by a mark in their environment, killed
// reliably.
#pragma once
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// A child in its own process group, with stdin from /dev/null and stdout and stderr in one pipe. The owner
/// ends and reaps it. The destructor kills the group if it still runs.
class ChildProcess {
 public:
  /// Starts the child. Its environment is this process's without the variables in `unset`, plus those in
  /// `set`. In the child all signals have their default action, and only those in `blocked` are blocked.
  /// Error(kLauncher) with the program's name if it cannot be started.
  ChildProcess(const std::vector<std::string>& argv, const Environment& set,
               const std::vector<std::string>& unset = {}, const std::vector<int>& blocked = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// The pipe's descriptor, readable when the child has written; -1 after its end of file.
  int output_fd() const { return output_fd_; }
  /// Becomes readable when the child has ended.
  int exit_fd() const { return exit_fd_; }
  /// Reads available output without blocking, about kMostOutputBytes at most, because a child may write
  /// without end. "" if there is none. The limit is larger than a pipe, so one call after the child's end
  /// returns the rest.
  std::string read_output();
  static constexpr size_t kMostOutputBytes = 1 << 20;
  /// The status from waitpid if the child has ended; nullopt while it runs.
  std::optional<int> reap();
  void signal_group(int signal) const;
  /// Gives up ownership: the destructor will not kill the child.
  void release();

 private:
  void close_output();
  pid_t pid_ = -1;
  int output_fd_ = -1, exit_fd_ = -1;
  std::optional<int> status_;
};

/// Starts a program in its own session, so that it outlives this process, and returns its pid. `environment`
/// has entries "NAME=value". stdin is /dev/null; stdout and stderr are appended to the file `log`. All
/// signals are unblocked and default. Error(kLauncher).
pid_t start_detached(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                     const std::string& log);

/// Forks: `main` goes on in the child, in its own session, with stdin from /dev/null and stdout and stderr
/// appended to the file `log`; its result is the child's exit status. Only for a process with one thread.
/// Error(kLauncher).
pid_t fork_detached(const std::string& log, const std::function<int()>& main);

/// Runs this program again in this process, with other words and another environment ("NAME=value"). Returns
/// only if that is impossible.
void become_own_program(std::vector<std::string> argv, std::vector<std::string> environment);

/// The status from waitpid of a child of this process, once it has ended; nullopt while it runs.
std::optional<int> reap(pid_t child);
/// A child of this process that has ended and waits for reap; nullopt: there is none.
std::optional<pid_t> ended_child();
/// Waits until this process has no more children, and reaps them.
void await_children();

/// The processes of this user, except this process, whose initial environment has exactly `name`=`value`.
std::vector<pid_t> processes_marked(const std::string& name, const std::string& value);
/// Whether the initial environment of `pid` has exactly `name`=`value`.
bool process_marked(pid_t pid, const std::string& name, const std::string& value);
/// Whether the initial environment of `pid` has a variable `name`.
bool process_has(pid_t pid, const std::string& name);
/// Sends `signal` to all of processes_marked. A new process that reuses the number of an ended one does not
/// get it. Returns the number of processes that are left.
int signal_marked(const std::string& name, const std::string& value, int signal);

/// Kills every descendant of this process, except those in other sessions (start_detached). Reads only
/// /proc/PID/stat, so it works while another thread is blocked in a file operation. Returns the number of
/// processes found.
int kill_descendants();

/// The time at which `pid` started, in ticks since boot. Pid and start time together identify a process.
/// nullopt if there is no such process.
std::optional<uint64_t> process_start_ticks(pid_t pid);

/// True if `pid` is stopped, by a signal or a debugger.
bool process_stopped(pid_t pid);

/// The full path of the program `name` on PATH, or `name` itself if it has a slash and is executable; "" if
/// there is none.
std::string find_program(const std::string& name);

}  // namespace trainctl
