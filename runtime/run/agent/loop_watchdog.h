// Notices that a loop has stopped turning, and acts in its place: an agent whose call to a file does not return (the
// server of the run directory is gone) cannot end its ranks itself.
//
// A thread of its own, which touches no file. Time counts as this thread sees it: where the whole process was
// stopped, this thread was stopped as well, and that says nothing about the loop.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace trainctl {

/// How long a counter has not changed. Pure: the time between two looks is given.
class StandStill {
 public:
  /// A look that comes `since_last_s` after the one before; one that is late counts as kMostS.
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
  /// `act` is called on the thread of this object while the loop has not turned for longer than `limit_s`, again
  /// and again. It must not throw, and not wait for the loop.
  LoopWatchdog(double limit_s, std::function<void()> act);
  ~LoopWatchdog();
  LoopWatchdog(const LoopWatchdog&) = delete;
  LoopWatchdog& operator=(const LoopWatchdog&) = delete;

  /// By the loop, in each turn.
  void turned() { turns_.fetch_add(1, std::memory_order_relaxed); }
  void set_limit(double limit_s) { limit_s_.store(limit_s, std::memory_order_relaxed); }
  /// Whether it has acted since the last call.
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
