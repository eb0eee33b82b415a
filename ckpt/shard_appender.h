// ShardAppender: writes a shard from pieces of any size.
//
// It collects them in a few parts of whole pages, so that each write is large and a file system can hand it
// to the disk as it lies there. One thread of its own writes the full parts, in order and one after the
// other, while the caller fills the next ones.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include "ckpt/page_memory.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

/// One thread calls it. A file of one part has no second thread.
class ShardAppender {
 public:
  /// `file` must outlive it. `file_bytes`: of the whole file.
  ShardAppender(NewFile& file, uint64_t file_bytes);
  /// Waits for the write that is under way and drops what is not written.
  ~ShardAppender();
  ShardAppender(const ShardAppender&) = delete;
  ShardAppender& operator=(const ShardAppender&) = delete;

  /// Copies `data`. Throws the error of an earlier write; no write follows a failed one.
  void append(std::span<const std::byte> data);
  /// Returns when all is written; throws the error of any write.
  void flush();
  uint64_t bytes() const { return handed_over_bytes_ + used_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  std::byte* part(uint64_t number) const;
  void hand_over();
  void wait_for(Lock& lock, uint64_t written);
  void run_writing();

  NewFile& file_;
  const uint64_t file_bytes_;
  PageMemory memory_;
  size_t used_ = 0;  ///< of the part that is being filled
  uint64_t handed_over_bytes_ = 0;
  std::thread writing_;  ///< from the first part that is handed over

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  uint64_t full_ = 0, written_ = 0;  ///< parts, counted from the beginning of the file
  bool ends_ = false;
  std::exception_ptr error_;
};

}  // namespace trainctl::ckpt
