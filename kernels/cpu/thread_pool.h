// A few threads that share the tasks of one op. Which thread runs which task is a race; what a task computes is not, so
// results never depend on the number of threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trainctl::kernels::cpu {

/// `threads` counts the caller, so one thread means no workers. Idle workers sleep: many ranks share a machine's cores.
/// `run` may be called from several threads; a caller that finds the workers busy does its tasks alone.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(workers_.size()) + 1; }

  /// Calls body(task, worker) once for every task in [0, tasks); worker in [0, threads) is the running thread, 0 for the
  /// caller. Returns when all are done. Rethrows the first exception of `body`; tasks not begun by then are dropped.
  template <typename Body>
  void run(int64_t tasks, Body&& body) {
    run_job({[](void* context, int64_t task, int worker) { (*static_cast<Body*>(context))(task, worker); },
             const_cast<void*>(static_cast<const void*>(&body)), tasks});
  }

 private:
  struct Job {
    void (*call)(void* context, int64_t task, int worker) = nullptr;
    void* context = nullptr;
    int64_t tasks = 0;
  };
  void run_job(const Job& job);
  void work(int worker);
  void take_tasks(const Job& job, int worker);

  std::mutex running_;  ///< held by the caller whose job the workers have

  std::mutex mutex_;  ///< guards job_, generation_, active_, stop_
  std::condition_variable wake_, idle_;
  Job job_;            ///< call == nullptr: nothing to take
  uint64_t generation_ = 0;
  int active_ = 0;     ///< workers inside the job
  std::exception_ptr failure_;
  bool stop_ = false;

  std::atomic<uint64_t> posted_{0};  ///< generation_, readable without the lock by a worker that still spins
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> workers_;
};

}  // namespace trainctl::kernels::cpu
