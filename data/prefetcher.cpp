#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "data/dataset.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

struct Prefetcher::State {
  struct Batch {
    SampleBatch samples;
    std::exception_ptr failure;
  };

  const Dataset& dataset;
  const size_t width;  // tokens of a sample
  const size_t depth;
  const std::function<void(double, double)> on_read;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::vector<uint64_t>> wanted;
  std::deque<Batch> ready;
  size_t outstanding = 0;  // requested, not yet handed out
  bool stop = false;
  std::thread thread;      // last: it uses the members above

  State(const Dataset& d, size_t w, size_t n, std::function<void(double, double)> read)
      : dataset(d), width(w), depth(n), on_read(std::move(read)), thread([this] { work(); }) {}

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stop || (!wanted.empty() && ready.size() < depth); });
      if (stop) return;
      const std::vector<uint64_t> indices = std::move(wanted.front());
      wanted.pop_front();
      lock.unlock();
      const double begin_s = real_clock().monotonic_s();
      Batch batch = read(indices);
      if (on_read) on_read(begin_s, real_clock().monotonic_s());
      lock.lock();
      ready.push_back(std::move(batch));
      changed.notify_all();
    }
  }

  Batch read(const std::vector<uint64_t>& indices) {
    Batch batch;
    try {
      batch.samples = SampleBatch::of(dataset, indices.size(), width);
      for (size_t i = 0; i < indices.size() && !stopping(); ++i)
        batch.samples.read(dataset, indices[i], i, width);
      dataset.require_unchanged();
    } catch (...) {
      batch.failure = std::current_exception();
    }
    return batch;
  }

  bool stopping() {
    const std::lock_guard lock(mutex);
    return stop;
  }
};

Prefetcher::Prefetcher(const Dataset& dataset, int64_t seq_len, int depth,
                       std::function<void(double, double)> on_read) {
  ENSURE(seq_len > 0 && depth > 0, "seq_len {}, depth {}", seq_len, depth);
  state_ = std::make_unique<State>(dataset, size_t(seq_len) + 1, size_t(depth), std::move(on_read));
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void Prefetcher::request(std::vector<uint64_t> indices) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->wanted.push_back(std::move(indices));
    ++state_->outstanding;
  }
  state_->changed.notify_all();
}

SampleBatch Prefetcher::next(double* waited_s) {
  const double start_s = real_clock().monotonic_s();
  std::unique_lock lock(state_->mutex);
  ENSURE(state_->outstanding > 0, "a batch was awaited that was not requested");
  state_->changed.wait(lock, [this] { return !state_->ready.empty(); });
  State::Batch batch = std::move(state_->ready.front());
  state_->ready.pop_front();
  --state_->outstanding;
  lock.unlock();
  state_->changed.notify_all();
  if (waited_s != nullptr) *waited_s = real_clock().monotonic_s() - start_s;
  if (batch.failure) std::rethrow_exception(batch.failure);
  return std::move(batch.samples);
}

}  // namespace trainctl::data
