#include "runtime/run/agent/loop_watchdog.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

#include "runtime/base/file_system.h"

namespace trainctl {
namespace {

constexpr std::chrono::milliseconds kLookEvery(250);

}  // namespace

LoopWatchdog::LoopWatchdog(double limit_s, std::function<void()> act)
    : act_(std::move(act)), limit_s_(limit_s) {
  // Signals are the loop's.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LoopWatchdog::~LoopWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void LoopWatchdog::watch() {
  StandStill still;
  double last_s = real_clock().monotonic_s();
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kLookEvery, [this] { return ending_; })) {
    const double now_s = real_clock().monotonic_s();
    const double since_last_s = now_s - std::exchange(last_s, now_s);
    const double stood_s = still.look(turns_.load(std::memory_order_relaxed), since_last_s);
    if (stood_s <= limit_s_.load(std::memory_order_relaxed)) continue;
    act_();
    acted_.store(true, std::memory_order_relaxed);
  }
}

}  // namespace trainctl
