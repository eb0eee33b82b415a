#include "runtime/train/measure/gpu_watch.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace trainctl {
namespace {

constexpr std::chrono::seconds kEndLimit{2};

}  // namespace

/// Outlives the watch where its thread does not come back from a read.
struct GpuWatch::Shared {
  std::function<kernels::GpuReadings()> read;
  std::chrono::duration<double> period;
  std::mutex mutex;   // guards what follows
  std::condition_variable changed;
  bool stopping = false, ended = false;
  kernels::GpuReadings last;

  void run() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      lock.unlock();
      const kernels::GpuReadings now = read();
      lock.lock();
      last = now;
      changed.wait_for(lock, period, [this] { return stopping; });
    }
    ended = true;
    changed.notify_all();
  }
};

GpuWatch::GpuWatch(std::function<kernels::GpuReadings()> read, double period_s) : shared_(std::make_shared<Shared>()) {
  shared_->read = std::move(read);
  shared_->period = std::chrono::duration<double>(period_s);
  std::thread([shared = shared_] { shared->run(); }).detach();
}

GpuWatch::~GpuWatch() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kEndLimit, [this] { return shared_->ended; });
}

kernels::GpuReadings GpuWatch::last() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->last;
}

}  // namespace trainctl
