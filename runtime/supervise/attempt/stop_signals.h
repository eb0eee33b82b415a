// The signals by which people and schedulers ask a run to stop.
#pragma once
#include <signal.h>
#include <sys/signalfd.h>

#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/train/control/control.h"

namespace trainctl {

/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 (a scheduler's warning before the time limit) request to save
/// and stop, but for those that were ignored before. SIGQUIT, or a second SIGINT at least 0.3 s after the first, requests to stop now. While an
/// object exists, these signals are blocked in its thread and in threads started after it; the destructor
/// restores the mask. Objects may nest: the inner one reads the signals, also those that arrived before it
/// was made.
///
/// One thread, except that a watch has its own.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Readable when a signal has arrived.
  int fd() const { return fd_; }
  /// Reads the signals that have arrived; returns the highest level requested so far.
  StopLevel read();
  /// Adds another source of stop requests (a time limit, another machine). Every read() calls it.
  void also(std::function<StopLevel()> source) { source_ = std::move(source); }
  /// Whether a scheduler's warning (SIGUSR1) was among the signals.
  bool warned() const;
  /// What is left of `limit_s` that began with the first request; all of it where there was none.
  double left_s(double limit_s) const;

  /// Ends a process whose thread hangs in a system call, such as that of a file system that does not answer,
  /// so that nothing calls read().
  struct LastResort {
    double deaf_s = 10;          ///< so long after the last read() the thread counts as hanging
    double exit_timeout_s = 60;  ///< how long a stop that saves may take
    /// Must end the process. Called in the thread of the watch. `asked_s`: since the request.
    std::function<void(StopLevel level, double asked_s)> act;
  };
  /// Watches from now on: when the thread hangs and a stop now is requested, or the time of one that saves
  /// has passed, calls last.act.
  void watch(LastResort last);

 private:
  void take(const signalfd_siginfo& info);
  StopLevel take_all();
  void run_watch();
  std::function<StopLevel()> source_;
  LastResort last_;
  int fd_ = -1, end_fd_ = -1;
  std::thread watching_;
  sigset_t old_mask_;
  void (*old_pipe_)(int) = SIG_DFL;

  mutable std::mutex mutex_;  // guards what follows
  bool warned_ = false;
  StopLevel level_ = StopLevel::none;
  std::optional<double> interrupted_s_;  ///< the first SIGINT, on the monotonic clock
  std::optional<double> requested_s_;    ///< the first request, likewise
  double read_s_ = 0;                    ///< the last read(), likewise
};

}  // namespace trainctl
