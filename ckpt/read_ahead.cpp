#include "ckpt/read_ahead.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>

#include "ckpt/page_memory.h"

namespace trainctl::ckpt {
namespace {

class Ahead {
 public:
  Ahead(size_t count, size_t ahead) : count_(count), ahead_(ahead) {}

  void run_reading(const std::function<void(size_t)>& read) {
    for (size_t i = 0; i < count_ && may_read(i); ++i) {
      std::exception_ptr error;
      try {
        read(i);
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      error_ = error;
      if (!error) read_ = i + 1;
      changed_.notify_all();
      if (error) return;
    }
  }
  void run_using(const std::function<void(size_t)>& use) {
    for (size_t i = 0; i < count_; ++i) {
      {
        Lock lock(mutex_);
        changed_.wait(lock, [&] { return read_ > i || error_; });
        if (read_ <= i) std::rethrow_exception(error_);
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
  bool may_read(size_t i) {
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return i < used_ + ahead_ || ends_; });
    return !ends_;
  }

  const size_t count_, ahead_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  size_t read_ = 0, used_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
};

}  // namespace

void read_ahead(size_t count, size_t ahead, const std::function<void(size_t)>& read,
                const std::function<void(size_t)>& use) {
  if (count == 0) return;
  Ahead both(count, ahead);
  const auto reading = std::async(std::launch::async, [&] { both.run_reading(read); });  // waits at its end
  try {
    both.run_using(use);
  } catch (...) {
    both.end();
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
