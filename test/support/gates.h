// Where threads wait until a test lets them go on.
#pragma once
#include <condition_variable>
#include <mutex>

namespace trainctl::test {

/// Lets others wait until the test opens it; reports when somebody waits.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await_visitor() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

/// Lets those who come through one at a time.
class Turnstile {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    const int number = ++visitors_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return number <= let_; });
  }
  /// Waits until `number` have come so far.
  void await_visitor(int number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return visitors_ >= number; });
  }
  void let(int more) {
    const std::lock_guard lock(mutex_);
    let_ += more;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int visitors_ = 0, let_ = 0;
};

}  // namespace trainctl::test
