// The signals by which people and schedulers ask a run to stop.
#pragma once
#include <signal.h>

#include <functional>
#include <optional>

#include "runtime/train/control/control.h"

namespace trainctl {

/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 (a scheduler's warning before the time limit) request to save
/// and stop. SIGQUIT, or a second SIGINT at least 0.3 s after the first, requests to stop now. While an
/// object exists, these signals are blocked in its thread and in threads started after it; the destructor
/// restores the mask. Objects may nest: the inner one reads the signals, also those that arrived before it
/// was made.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int fd() const { return fd_; }
  /// Reads the signals that have arrived; returns the highest level requested so far.
  StopLevel read();
  /// Adds another source of stop requests (a time limit, another machine). Every read() calls it.
  void also(std::function<StopLevel()> source) { source_ = std::move(source); }
  /// Whether a scheduler's warning (SIGUSR1) was among the signals.
  bool warned() const { return warned_; }

 private:
  std::function<StopLevel()> source_;
  bool warned_ = false;
  int fd_ = -1;
  StopLevel level_ = StopLevel::none;
  std::optional<double> interrupted_s_;  ///< the first SIGINT, on the monotonic clock
  sigset_t old_mask_;
  void (*old_pipe_)(int) = SIG_DFL;
};

}  // namespace trainctl
