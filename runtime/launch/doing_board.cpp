#include "runtime/launch/doing_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace trainctl {

/// A sequence lock: odd while the text is being written.
struct DoingBoard::Slot {
  std::atomic<uint32_t> sequence;
  char text[508];
};

std::unique_ptr<DoingBoard> DoingBoard::map(int fd, int count) {
  if (fd < 0) return nullptr;
  void* memory = count > 0
                     ? ::mmap(nullptr, size_t(count) * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<DoingBoard>(new DoingBoard(static_cast<Slot*>(memory), count));
}

std::unique_ptr<DoingBoard> DoingBoard::create(const std::string& path, int ranks) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  // posix_fallocate takes the pages now: a full /dev/shm must not become a SIGBUS later.
  if (fd >= 0 && ::posix_fallocate(fd, 0, off_t(size_t(ranks) * sizeof(Slot))) != 0) {
    ::close(fd);
    return nullptr;
  }
  return map(fd, ranks);
}

std::unique_ptr<DoingBoard> DoingBoard::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat s;
  if (fd < 0 || ::fstat(fd, &s) != 0) return map(fd, 0);
  return map(fd, int(size_t(s.st_size) / sizeof(Slot)));
}

DoingBoard::~DoingBoard() { ::munmap(slots_, size_t(count_) * sizeof(Slot)); }

void DoingBoard::write(int rank, const std::string& text) {
  if (rank < 0 || rank >= count_) return;
  Slot& slot = slots_[rank];
  const uint32_t sequence = slot.sequence.load(std::memory_order_relaxed) | 1;
  slot.sequence.store(sequence, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const size_t size = std::min(text.size(), sizeof slot.text - 8);
  std::memcpy(slot.text, text.data(), size);
  slot.text[size] = 0;
  slot.sequence.store(sequence + 1, std::memory_order_release);
}

std::string DoingBoard::read(int rank) const {
  if (rank < 0 || rank >= count_) return "";
  const Slot& slot = slots_[rank];
  char text[sizeof slot.text];
  // A writer that was killed in the middle leaves the sequence odd: then a mixed text is better than
  // none.
  for (int tries = 0; tries < 1000; ++tries) {
    const uint32_t before = slot.sequence.load(std::memory_order_acquire);
    std::memcpy(text, slot.text, sizeof text);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && slot.sequence.load(std::memory_order_relaxed) == before) break;
  }
  text[sizeof text - 1] = 0;
  return text;
}

}  // namespace trainctl
