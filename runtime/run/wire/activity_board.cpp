#include "runtime/run/wire/activity_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace trainctl {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "slots are shared between processes and read by signal handlers");

std::unique_ptr<ActivityBoard> ActivityBoard::map(int fd, int count) {
  if (fd < 0) return nullptr;
  void* memory = count > 0
                     ? ::mmap(nullptr, size_t(count) * sizeof(Slots), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  // A new file is all zero, and so are empty slots.
  return std::unique_ptr<ActivityBoard>(new ActivityBoard(static_cast<Slots*>(memory), count));
}

std::unique_ptr<ActivityBoard> ActivityBoard::create(const std::string& path, int ranks) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  // posix_fallocate takes the pages now: a full /dev/shm must not become a SIGBUS later.
  if (fd >= 0 && ::posix_fallocate(fd, 0, off_t(size_t(ranks) * sizeof(Slots))) != 0) {
    ::close(fd);
    return nullptr;
  }
  return map(fd, ranks);
}

std::unique_ptr<ActivityBoard> ActivityBoard::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat s;
  if (fd < 0 || ::fstat(fd, &s) != 0) return map(fd, 0);
  return map(fd, int(size_t(s.st_size) / sizeof(Slots)));
}

ActivityBoard::~ActivityBoard() { ::munmap(static_cast<void*>(slots_), size_t(count_) * sizeof(Slots)); }

void ActivityBoard::write(int rank, const Activity& activity) {
  if (rank >= 0 && rank < count_) slots_[rank].host.write(activity);
}

void ActivityBoard::write_device(int rank, const Activity& activity) {
  if (rank >= 0 && rank < count_) slots_[rank].device.write(activity);
}

std::optional<Activity> ActivityBoard::read(int rank) const {
  const auto host = rank >= 0 && rank < count_ ? slots_[rank].host.read() : std::nullopt;
  return host ? std::optional(with_device(*host, slots_[rank].device.read())) : std::nullopt;
}

}  // namespace trainctl
