// LoopWatchdog notices that a loop no longer turns and calls a function in its place. It is for an agent that
// is blocked in a file operation because the file server of the run directory is gone: such an agent cannot
// end its ranks itself.
//
// The watchdog has its own thread, which touches no file. Only time in which this thread ran counts, so a
// process that was stopped as a whole does not look like a blocked loop.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace trainctl {

/// Measures how long a counter has not changed. Pure: the caller gives the times.
class StandStill {
 public:
  /// Call at intervals with the current counter and the time since the last call, of which at most kMostS
  /// counts. Returns how long the counter has not changed, in seconds.
  double look(uint64_t turns, double since_last_s) {
    stood_s_ = turns == turns_ ? stood_s_ + (since_last_s < kMostS ? since_last_s : kMostS) : 0;
    turns_ = turns;
    return stood_s_;
  }

 private:
  static constexpr double kMostS = 1;
  uint64_t turns_ = 0;
  double stood_s_ = 0;
};

class LoopWatchdog {
 public:
  /// Starts the thread. The thread calls `act` four times per second while the loop has not turned for longer
  /// than `limit_s`. `act` must not throw and must not wait for the loop.
  LoopWatchdog(double limit_s, std::function<void()> act);
  ~LoopWatchdog();
  LoopWatchdog(const LoopWatchdog&) = delete;
  LoopWatchdog& operator=(const LoopWatchdog&) = delete;

  /// The loop calls this in each turn.
  void turned() { turns_.fetch_add(1, std::memory_order_relaxed); }
  void set_limit(double limit_s) { limit_s_.store(limit_s, std::memory_order_relaxed); }
  /// Whether `act` was called since the last call of has_acted.
  bool has_acted() { return acted_.exchange(false, std::memory_order_relaxed); }

 private:
  void watch();
  std::function<void()> act_;
  std::atomic<uint64_t> turns_ = 1;
  std::atomic<double> limit_s_;
  std::atomic<bool> acted_ = false;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace trainctl
