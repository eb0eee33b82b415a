// Threads that share the tasks of one op. Any thread may run any task, but a task's result does not depend on
// the thread. So results do not depend on the number of threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trainctl::kernels::cpu {

/// `threads` includes the caller, so with one thread there are no workers. Idle workers sleep, because many
/// ranks share the cores of a machine. Several threads may call `run`; a caller runs its tasks alone while
/// the workers are busy.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(workers_.size()) + 1; }

  /// Calls body(task, worker) once for every task in [0, tasks). `worker` in [0, threads) is the running
  /// thread; 0 is the caller. Returns when all tasks are done. Rethrows the first exception of `body`; tasks
  /// that have not begun are skipped.
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

  std::mutex running_;  ///< held by the caller whose job the workers run

  std::mutex mutex_;  ///< guards job_, generation_, active_, stop_
  std::condition_variable wake_, idle_;
  Job job_;            ///< call == nullptr: there is no job
  uint64_t generation_ = 0;
  int active_ = 0;     ///< workers inside the job
  std::exception_ptr failure_;
  bool stop_ = false;

  std::atomic<uint64_t> posted_{0};  ///< generation_, readable without the lock by a worker that still spins
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> workers_;
};

}  // namespace trainctl::kernels::cpu
