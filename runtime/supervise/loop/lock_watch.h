// LockWatch checks in the supervisor's loops whether this process still holds the run's lock. One thread.
#pragma once
#include "runtime/base/file_system.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

class LockWatch {
 public:
  /// `lock` may be null in tests; then the checks always pass.
  LockWatch(const RunLock* lock, Clock& clock) : lock_(lock), clock_(clock), looked_s_(clock.monotonic_s()) {}

  /// Call it first in every turn of a loop, because a process that was stopped must check the lock before it
  /// acts. Reads the lock at most once a second. Throws RunTaken.
  void turn() {
    if (clock_.monotonic_s() - looked_s_ < kIntervalS) return;
    must_hold();
    looked_s_ = clock_.monotonic_s();
  }
  /// Reads the lock now. Throws RunTaken. Safe from any thread.
  void must_hold() const {
    if (lock_) lock_->must_hold();
  }
  /// must_hold() for threads that may outlive this object (RunLock::check).
  std::function<void()> check() const {
    return lock_ ? lock_->check() : [] {};
  }

 private:
  static constexpr double kIntervalS = 1;
  const RunLock* lock_;
  Clock& clock_;
  double looked_s_;
};

}  // namespace trainctl
