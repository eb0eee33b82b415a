// A clock that a test winds while several threads read it.
#pragma once
#include <atomic>

#include "runtime/base/file_system.h"

namespace trainctl::test {

class ThreadClock final : public Clock {
 public:
  double monotonic_s() override { return now_s_ += per_look_s_; }
  double unix_s() override { return monotonic_s() + jumped_s_; }
  void sleep_s(double seconds) override { pass(seconds); }
  void pass(double seconds) { now_s_ += seconds; }
  /// Somebody sets the time of the system, which is not that of the monotonic clock.
  void jump(double seconds) { jumped_s_ += seconds; }
  /// From now on each look takes so long: what waits until a deadline comes to it, whatever the machine does.
  void pass_with_each_look(double seconds) { per_look_s_ = seconds; }

 private:
  std::atomic<double> now_s_ = 100, per_look_s_ = 0, jumped_s_ = 0;
};

}  // namespace trainctl::test
