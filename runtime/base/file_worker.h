// FileWorker does what may wait for a file system on a thread of its own, so that a loop which others wait
// for (a supervisor's, an agent's) never waits long for a disk, a file server or a terminal.
//
// Where the file system answers, a call returns when its work is done, so that files are as if it had been
// done here. One that is slow is waited for half of the time at most, and one that does not answer once,
// patience_s; else work is kept in order, and done when the file system answers again.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace trainctl {

/// One thread calls it. What `work` refers to must live until it is done, which may be after this object.
class FileWorker {
 public:
  static constexpr double kPatienceS = 0.5;
  /// More work than this is not kept: that which came last is dropped, and is_complete() says so.
  static constexpr size_t kMostWaiting = 65536;

  explicit FileWorker(double patience_s = kPatienceS);
  /// Waits for what is left, a few seconds; a thread that hangs is left to itself.
  ~FileWorker();
  FileWorker(const FileWorker&) = delete;
  FileWorker& operator=(const FileWorker&) = delete;

  /// The thread calls `guard` before the work that follows one which took longer than patience_s: much may
  /// have happened meanwhile. If it throws, nothing more is done, and ask() throws the same.
  void set_guard(std::function<void()> guard);

  /// Does `work` after all that came before, without waiting for it. The future has its result or error; it
  /// is not valid if the work was not kept.
  template <typename Work>
  auto begin(Work work) {
    using Result = std::invoke_result_t<Work>;
    const auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
    auto result = task->get_future();
    if (enqueue([task] { (*task)(); }) == 0) result = {};
    return result;
  }

  /// Does `work` after all that came before, and waits for it as said above, or up to `limit_s`. Returns its
  /// result, true for work without one; nullopt or false: it is not done yet. Throws what it threw.
  template <typename Work>
  auto ask(Work work, std::optional<double> limit_s = std::nullopt) {
    using Result = std::invoke_result_t<Work>;
    const auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
    auto result = task->get_future();
    const uint64_t number = enqueue([task] { (*task)(); });
    const bool is_done = number > 0 && await(number, limit_s);
    rethrow_refusal();
    if constexpr (std::is_void_v<Result>) {
      if (is_done) result.get();
      return is_done;
    } else {
      return is_done ? std::optional<Result>(result.get()) : std::nullopt;
    }
  }

  /// Waits until everything is done, at most `limit_s`. False: it is not.
  bool finish(double limit_s);
  bool is_idle() const;      ///< nothing waits or is under way
  bool is_complete() const;  ///< all work was kept and done; never again once some was dropped or refused
  double quiet_s() const;    ///< how long the work under way has taken so far; 0: there is none
  /// Throws what the guard threw, if it did.
  void rethrow_refusal() const;
  /// What asks would not be answered soon; who only looks whether something has come looks later.
  bool hangs() const { return patience_left_s() <= 0; }

 private:
  struct Thread;
  uint64_t enqueue(std::function<void()> work);  ///< its number; 0: it is not kept
  bool await(uint64_t number, std::optional<double> limit_s);
  double patience_left_s() const;
  const double patience_s_;
  double debt_s_ = 0, debt_at_s_ = 0;  ///< time waited, of which half of the time that passes is forgiven
  std::shared_ptr<Thread> thread_;
};

}  // namespace trainctl
