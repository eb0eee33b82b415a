// BackOff: what a waiting rank does between two polls. It yields, then sleeps for longer and longer. Ranks
// share cores, and a spinning rank would take them from the rank that it waits for.
#pragma once
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace trainctl::parallel {

/// Call pause() between two polls. Make a new object for each wait. One thread.
class BackOff {
 public:
  /// longest: how late the end of the wait may be noticed.
  explicit BackOff(std::chrono::microseconds longest = std::chrono::microseconds{200}) : longest_(longest) {}
  void pause() {
    if (yields_++ < kYields) {
      sched_yield();
      return;
    }
    // The kernel's default slack of 50 us would triple the shortest sleeps.
    static thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    (void)slack_set;
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(longest_, sleep_ * 5 / 4);
  }

 private:
  static constexpr int kYields = 64;  // polls before the first sleep
  static constexpr std::chrono::microseconds kFirstSleep{20};
  const std::chrono::microseconds longest_;
  int yields_ = 0;
  std::chrono::microseconds sleep_ = kFirstSleep;
};

}  // namespace trainctl::parallel
