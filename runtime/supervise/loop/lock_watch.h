// LockWatch checks in the supervisor's loops whether this process still holds the run's lock. One thread.
#pragma once
#include "runtime/base/file_system.h"
#include "runtime/base/file_worker.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

class LockWatch {
 public:
  /// `lock` may be null in tests; then the checks always pass.
  LockWatch(const RunLock* lock, Clock& clock, FileWorker& files)
      : lock_(lock), clock_(clock), files_(files), looked_s_(clock.monotonic_s()) {
    files_.set_guard(check());
  }

  /// Call it first in every turn of a loop, because a process that was stopped must check the lock before it
  /// acts. Has the lock read once a second. Throws RunTaken. Where the file system does not answer, what it
  /// says is heard later: until then this process changes none of its files, and goes on with its agents.
  void turn() {
    if (!looking_.valid()) {
      if (clock_.monotonic_s() - looked_s_ < kIntervalS) return;
      looking_ = files_.begin(check());
      if (!looking_.valid()) return;
    }
    const std::chrono::duration<double> patience(files_.hangs() ? 0 : FileWorker::kPatienceS);
    if (looking_.wait_for(patience) != std::future_status::ready) return;
    looked_s_ = clock_.monotonic_s();
    files_.rethrow_refusal();
    looking_.get();
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
  FileWorker& files_;
  double looked_s_;
  std::future<void> looking_;
};

}  // namespace trainctl
