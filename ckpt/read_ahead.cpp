#include "ckpt/read_ahead.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <optional>

#include "ckpt/page_memory.h"

namespace trainctl::ckpt {
namespace {

class Turns {
 public:
  Turns(size_t count, size_t most) : most_(most), states_(count) {}

  void run_reading(const std::function<void(size_t)>& read) {
    for (std::optional<size_t> i = next(); i; i = next()) {
      std::exception_ptr error;
      try {
        read(*i);
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      states_[*i] = error ? State::failed : State::read;
      if (error) errors_[*i] = error;
      ends_ = ends_ || error;
      changed_.notify_all();
    }
  }
  void run_using(const std::function<void(size_t)>& use) {
    for (size_t i = 0; i < states_.size(); ++i) {
      {
        Lock lock(mutex_);
        // What comes before a failed read was begun before it, and is used.
        changed_.wait(lock, [&] { return states_[i] != State::open; });
        if (states_[i] == State::failed) std::rethrow_exception(errors_[i]);
      }
      use(i);
      const std::lock_guard lock(mutex_);
      used_ = i + 1;
      changed_.notify_all();
    }
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class State : uint8_t { open, read, failed };

  /// What a reader reads next, in its turn.
  std::optional<size_t> next() {
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return ends_ || next_ == states_.size() || next_ < used_ + most_; });
    if (ends_ || next_ == states_.size()) return std::nullopt;
    return next_++;
  }

  const size_t most_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<State> states_;
  std::map<size_t, std::exception_ptr> errors_;
  size_t next_ = 0, used_ = 0;
  bool ends_ = false;
};

}  // namespace

void read_ahead(size_t count, Ahead ahead, const std::function<void(size_t)>& read,
                const std::function<void(size_t)>& use) {
  if (count == 0) return;
  Turns turns(count, ahead.most);
  std::vector<std::future<void>> readers;  // their destructors wait
  try {
    for (size_t i = 0; i < std::min(ahead.readers, count); ++i)
      readers.push_back(std::async(std::launch::async, [&] { turns.run_reading(read); }));
    turns.run_using(use);
  } catch (...) {
    turns.end();
    throw;
  }
}

std::vector<FileRange> blocks_over(std::span<const FileRange> ranges, uint64_t file_bytes, uint64_t most) {
  constexpr uint64_t kPage = PageMemory::kPage;
  std::vector<FileRange> runs;
  for (const FileRange& range : ranges) {
    const uint64_t begin = range.offset / kPage * kPage, end = (range.end() + kPage - 1) / kPage * kPage;
    if (runs.empty() || runs.back().end() < begin) runs.push_back({begin, 0});
    runs.back().bytes = end - runs.back().offset;
  }
  std::vector<FileRange> blocks;
  for (const FileRange& run : runs)
    for (uint64_t at = run.offset, end = std::min(run.end(), file_bytes); at < end; at += blocks.back().bytes)
      blocks.push_back({at, std::min(most, end - at)});
  return blocks;
}

}  // namespace trainctl::ckpt
