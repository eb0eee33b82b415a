// Child processes: started without forking the parent's memory, found again by a mark in their environment,
// ended for sure.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// A child in its own process group, with stdin from /dev/null and stdout and stderr in one pipe. The owner
/// ends and reaps it; the destructor kills what is still there.
class ChildProcess {
 public:
  /// The child has this process's environment without the variables named in `unset`, and with those in `set`.
  /// Signals are unblocked and default in the child, but for `blocked`. Error(kLauncher) naming the program
  /// when it cannot be started.
  ChildProcess(const std::vector<std::string>& argv, const Environment& set,
               const std::vector<std::string>& unset = {}, const std::vector<int>& blocked = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable when the child has written; -1 after its end of file.
  int output_fd() const { return output_fd_; }
  /// Becomes readable when the child has ended.
  int exit_fd() const { return exit_fd_; }
  /// Reads what is there without blocking, about kMostOutputBytes at a time: a child may write without end. ""
  /// when there is nothing. That much is more than a pipe holds: one call after the child's end gets all of it.
  std::string read_output();
  static constexpr size_t kMostOutputBytes = 1 << 20;
  /// waitpid's status once the child has ended.
  std::optional<int> reap();
  void signal_group(int signal) const;
  /// It goes on without an owner.
  void release();

 private:
  void close_output();
  pid_t pid_ = -1;
  int output_fd_ = -1, exit_fd_ = -1;
  std::optional<int> status_;
};

/// Starts a program in a session of its own that outlives this process, with this environment ("NAME=value"),
/// stdin from /dev/null, stdout and stderr appended to the file `log`, and signals unblocked and default.
/// Error(kLauncher).
pid_t start_detached(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                     const std::string& log);

/// Processes of this user whose initial environment holds exactly `name`=`value`, other than this process.
std::vector<pid_t> processes_marked(const std::string& name, const std::string& value);
/// Whether that process's initial environment holds exactly `name`=`value`.
bool process_marked(pid_t pid, const std::string& name, const std::string& value);
/// Whether it holds a variable of that name at all.
bool process_has(pid_t pid, const std::string& name);
/// Sends `signal` to each of them; a process that ends meanwhile (and whose number is reused) is not hit.
/// Returns how many are left.
int signal_marked(const std::string& name, const std::string& value, int signal);

/// Kills every process below this one, but those of other sessions, which have been given away
/// (start_detached). Reads /proc/PID/stat alone: it works while another thread waits for a file. How many it
/// found.
int kill_descendants();

/// Ticks since boot at which `pid` started: with the pid, the identity of a process. Nothing if there is no
/// such process.
std::optional<uint64_t> process_start_ticks(pid_t pid);

/// True if `pid` is stopped, by a signal or a debugger.
bool process_stopped(pid_t pid);

/// The program of that name on PATH (or itself, if it holds a slash and is executable); "" if there is none.
std::string find_program(const std::string& name);

}  // namespace trainctl
