#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>

#include <utility>

namespace trainctl::kernels::cpu {

namespace {
// A few microseconds: enough for the next op of a layer to arrive, too short to take a core from another
// rank.
constexpr int kSpins = 200;
}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    posted_.store(++generation_);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::take_tasks(const Job& job, int worker) {
  try {
    for (int64_t task = next_.fetch_add(1); task < job.tasks; task = next_.fetch_add(1)) {
      job.call(job.context, task, worker);
    }
  } catch (...) {
    next_.store(job.tasks);
    std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::current_exception();
    }
  }
}

void ThreadPool::run_job(const Job& job) {
  std::unique_lock running(running_, std::try_to_lock);
  if (workers_.empty() || job.tasks <= 1 || !running.owns_lock()) {
    for (int64_t task = 0; task < job.tasks; ++task) {
      job.call(job.context, task, 0);
    }
    return;
  }
  {
    std::lock_guard lock(mutex_);
    next_.store(0);
    job_ = job;
    posted_.store(++generation_);
  }
  wake_.notify_all();
  take_tasks(job, 0);
  // Workers that have not woken yet find no job; this waits for those that are inside it.
  std::unique_lock lock(mutex_);
  job_ = {};
  idle_.wait(lock, [this] { return active_ == 0; });
  if (failure_) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && posted_.load(std::memory_order_relaxed) == seen; ++spin) {
      _mm_pause();
    }
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (stop_) {
        return;
      }
      job = job_;
      if (job.call == nullptr) {
        continue;
      }
      ++active_;
    }
    take_tasks(job, worker);
    {
      std::lock_guard lock(mutex_);
      --active_;
    }
    idle_.notify_one();
  }
}

}  // namespace trainctl::kernels::cpu
