// OrderedWork: jobs that several threads do, with results that come in the order of the jobs.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace trainctl::data {

/// One thread submits and takes; the work is done by threads of its own. The destructor waits for the jobs
/// that are being done and drops the others.
template <class Job, class Result>
class OrderedWork {
 public:
  using Worker = std::function<Result(Job&)>;

  /// `make_worker`: called once for each thread, in it, so that each has memory of its own. It may be
  /// called at once.
  OrderedWork(int threads, std::function<Worker()> make_worker)
      : most_(2 * size_t(std::max(threads, 1)) + 2) {
    for (int t = 0; t < std::max(threads, 1); ++t)
      threads_.emplace_back([this, make_worker] { work(make_worker); });
  }
  ~OrderedWork() {
    {
      const std::lock_guard lock(mutex_);
      waiting_.clear();
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedWork(const OrderedWork&) = delete;

  /// Jobs are limited: take a result first when it is full.
  bool is_full() const { return entries_.size() >= most_; }
  bool is_empty() const { return entries_.empty(); }
  void submit(Job job) {
    entries_.push_back(std::make_shared<Entry>(std::move(job)));
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(entries_.back());
    }
    changed_.notify_all();
  }
  /// The result of the oldest job; waits for it. Throws what the job threw. Not when it is empty.
  Result take() {
    const std::shared_ptr<Entry> entry = std::move(entries_.front());
    entries_.pop_front();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entry->result.has_value() || entry->error; });
    if (entry->error) std::rethrow_exception(entry->error);
    return std::move(*entry->result);
  }

 private:
  struct Entry {
    explicit Entry(Job j) : job(std::move(j)) {}
    Job job;
    std::optional<Result> result;
    std::exception_ptr error;
  };

  void work(const std::function<Worker()>& make_worker) {
    std::optional<Worker> worker;
    while (true) {
      std::shared_ptr<Entry> entry;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        entry = std::move(waiting_.front());
        waiting_.pop_front();
      }
      std::optional<Result> result;
      std::exception_ptr error;
      try {
        if (!worker) worker = make_worker();
        result = (*worker)(entry->job);
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        entry->result = std::move(result);
        entry->error = error;
      }
      changed_.notify_all();
    }
  }

  const size_t most_;
  std::deque<std::shared_ptr<Entry>>
      entries_;  // of the thread that submits: all whose results were not taken
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Entry>> waiting_;  // not begun
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

/// `wanted`, or the number of cores of this process for 0.
inline int thread_count(int wanted) {
  return wanted > 0 ? wanted : int(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace trainctl::data
