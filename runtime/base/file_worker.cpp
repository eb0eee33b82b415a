#include "runtime/base/file_worker.h"

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/base/file_system.h"

namespace trainctl {
namespace {

constexpr double kLeaveS = 3;

using Lock = std::unique_lock<std::mutex>;

}  // namespace

/// Also owned by its thread, which a file system may keep for longer than the FileWorker lives.
struct FileWorker::Thread {
  void run(double patience_s) {
    bool was_long = false;
    Lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !works.empty() || ends; });
      if (works.empty()) return;
      const std::function<void()> work = std::move(works.front());
      works.pop_front();
      begun_s = real_clock().monotonic_s();
      const std::exception_ptr found = unlocked(lock, work, was_long ? guard : nullptr);
      was_long = real_clock().monotonic_s() - *begun_s > patience_s;
      begun_s.reset();
      if (found) {
        refusal = found;
        works.clear();
      } else {
        ++done;
      }
      if (works.empty()) busy_since_s.reset();
      changed.notify_all();
    }
  }

  /// What `check` threw, in place of the work.
  static std::exception_ptr unlocked(Lock& lock, const std::function<void()>& work,
                                     const std::function<void()>& check) {
    std::exception_ptr found;
    lock.unlock();
    try {
      if (check) check();
    } catch (...) {
      found = std::current_exception();
    }
    if (!found) work();  // a packaged task: keeps what it throws
    lock.lock();
    return found;
  }

  bool is_idle() const { return works.empty() && !begun_s; }

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::function<void()>> works;
  std::function<void()> guard;
  std::optional<double> begun_s;       ///< when the work under way began
  std::optional<double> busy_since_s;  ///< since when there is work
  std::exception_ptr refusal;          ///< of the guard
  uint64_t kept = 0, done = 0;         ///< works so far
  bool ends = false, has_dropped = false;
  std::thread thread;
};

FileWorker::FileWorker(double patience_s) : patience_s_(patience_s), thread_(std::make_shared<Thread>()) {
  // Signals are for the threads that know what to do with them.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_->thread = std::thread([thread = thread_, patience_s] { thread->run(patience_s); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

FileWorker::~FileWorker() {
  {
    const Lock lock(thread_->mutex);
    thread_->ends = true;
  }
  thread_->changed.notify_all();
  if (finish(kLeaveS))
    thread_->thread.join();
  else
    thread_->thread.detach();
}

void FileWorker::set_guard(std::function<void()> guard) {
  const Lock lock(thread_->mutex);
  thread_->guard = std::move(guard);
}

uint64_t FileWorker::enqueue(std::function<void()> work) {
  const Lock lock(thread_->mutex);
  if (thread_->refusal || thread_->works.size() >= kMostWaiting) {
    thread_->has_dropped = true;
    return 0;
  }
  if (!thread_->busy_since_s) thread_->busy_since_s = real_clock().monotonic_s();
  thread_->works.push_back(std::move(work));
  thread_->changed.notify_all();
  return ++thread_->kept;
}

bool FileWorker::await(uint64_t number, std::optional<double> limit_s) {
  const double now_s = real_clock().monotonic_s();
  Lock lock(thread_->mutex);
  const double busy_s = thread_->busy_since_s ? now_s - *thread_->busy_since_s : 0;
  debt_s_ = std::max(0.0, debt_s_ - (now_s - debt_at_s_) / 2);
  debt_at_s_ = now_s;
  const double wait_s = limit_s ? *limit_s - busy_s : patience_s_ - std::max(debt_s_, busy_s);
  const bool is_done = thread_->changed.wait_for(lock, std::chrono::duration<double>(std::max(0.0, wait_s)),
                                                 [&] { return thread_->done >= number || thread_->refusal; });
  debt_s_ += real_clock().monotonic_s() - now_s;
  return is_done && thread_->done >= number;
}

bool FileWorker::finish(double limit_s) {
  Lock lock(thread_->mutex);
  return thread_->changed.wait_for(lock, std::chrono::duration<double>(limit_s),
                                   [this] { return thread_->is_idle(); });
}

bool FileWorker::is_idle() const {
  const Lock lock(thread_->mutex);
  return thread_->is_idle();
}

double FileWorker::quiet_s() const {
  const Lock lock(thread_->mutex);
  return thread_->begun_s ? real_clock().monotonic_s() - *thread_->begun_s : 0;
}

double FileWorker::patience_left_s() const {
  const double now_s = real_clock().monotonic_s();
  const Lock lock(thread_->mutex);
  const double busy_s = thread_->busy_since_s ? now_s - *thread_->busy_since_s : 0;
  return std::max(0.0, patience_s_ - std::max(debt_s_ - (now_s - debt_at_s_) / 2, busy_s));
}

bool FileWorker::is_complete() const {
  const Lock lock(thread_->mutex);
  return thread_->is_idle() && !thread_->has_dropped && !thread_->refusal;
}

void FileWorker::rethrow_refusal() const {
  Lock lock(thread_->mutex);
  const std::exception_ptr refusal = thread_->refusal;
  lock.unlock();
  if (refusal) std::rethrow_exception(refusal);
}

}  // namespace trainctl
