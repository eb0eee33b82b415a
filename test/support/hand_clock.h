// A clock that a test winds by hand.
#pragma once
#include "runtime/base/file_system.h"

namespace trainctl::test {

class HandClock final : public Clock {
 public:
  double monotonic_s() override { return now_s; }
  double unix_s() override { return 1e9 + now_s; }
  void sleep_s(double seconds) override { now_s += seconds; }
  double now_s = 1000;
};

}  // namespace trainctl::test
