#include "ckpt/shard_appender.h"

#include <algorithm>
#include <cstring>

#include "ckpt/shard_layout.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

/// More parts of less memory: the disk has work while the other thread waits for a core.
constexpr uint64_t kParts = 4;
constexpr size_t kPartBytes = kShardWriterBytes / kParts;

}  // namespace

ShardAppender::ShardAppender(NewFile& file, uint64_t file_bytes)
    : file_(file), file_bytes_(file_bytes), memory_(std::min<uint64_t>(kShardWriterBytes, file_bytes)) {}

ShardAppender::~ShardAppender() {
  if (!writing_.joinable()) return;
  {
    const Lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  writing_.join();
}

std::byte* ShardAppender::part(uint64_t number) const {
  return memory_.data() + number % kParts * kPartBytes;
}

void ShardAppender::append(std::span<const std::byte> data) {
  ENSURE(bytes() + data.size() <= file_bytes_, "{} bytes and {} more, {} planned", bytes(), data.size(),
         file_bytes_);
  while (!data.empty()) {
    if (used_ == kPartBytes) hand_over();
    const size_t n = std::min(data.size(), kPartBytes - used_);
    std::memcpy(part(full_) + used_, data.data(), n);
    used_ += n;
    data = data.subspan(n);
  }
}

void ShardAppender::flush() {
  {
    Lock lock(mutex_);
    wait_for(lock, full_);
  }
  if (used_ > 0) file_.append({part(full_), used_});
  handed_over_bytes_ += used_;
  used_ = 0;
}

/// Returns when there is room for another part.
void ShardAppender::hand_over() {
  if (!writing_.joinable()) writing_ = std::thread([this] { run_writing(); });
  handed_over_bytes_ += used_;
  used_ = 0;
  Lock lock(mutex_);
  ++full_;
  changed_.notify_all();
  wait_for(lock, full_ - std::min(full_, kParts - 1));
}

void ShardAppender::wait_for(Lock& lock, uint64_t written) {
  changed_.wait(lock, [&] { return written_ >= written || error_; });
  if (error_) std::rethrow_exception(error_);
}

void ShardAppender::run_writing() {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return written_ < full_ || ends_; });
    if (ends_) return;
    const std::span<const std::byte> data(part(written_), kPartBytes);
    lock.unlock();
    std::exception_ptr error;
    try {
      file_.append(data);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    ++written_;
    changed_.notify_all();
    if (error_) return;
  }
}

}  // namespace trainctl::ckpt
