// The signals by which people and schedulers ask a run to stop.
#pragma once
#include <signal.h>

#include <functional>
#include <optional>

#include "runtime/train/control.h"

namespace trainctl {

/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 (a scheduler's warning before the time limit) ask to save and
/// stop; SIGQUIT, or a second SIGINT at least 0.3 s after the first, to stop now. While one exists, those
/// signals are blocked in this thread and in threads started after it; the destructor restores them. Two may
/// exist: the inner one reads, and what came before it was made is not lost.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int fd() const { return fd_; }
  /// Reads what has arrived; the level asked for so far.
  StopLevel read();
  /// Another source of the same wishes (a time limit, a request from another machine): asked at every read().
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
