#include "runtime/base/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr size_t kScratchBlock = 4096;

/// A file that is open for whole blocks past the system's cache, and once more for all else.
class ScratchFile final : public File {
 public:
  ScratchFile(int fd, int direct_fd, ScratchFileOptions options)
      : fd_(fd), direct_fd_(direct_fd), options_(std::move(options)) {}
  ~ScratchFile() override {
    ::close(fd_);
    if (direct_fd_ >= 0) ::close(direct_fd_);
  }

  void write_at(uint64_t offset, std::span<const std::byte> data) override {
    const size_t all = data.size();
    while (!data.empty()) {
      const ssize_t n = ::pwrite(fd_for(offset, data), data.data(), data.size(), off_t(offset));
      if (n < 0 && is_tried_again()) continue;
      if (n == 0) errno = ENOSPC;  // it takes no more
      if (n <= 0) fail("write", all, offset);
      data = data.subspan(size_t(n)), offset += uint64_t(n);
    }
  }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    const size_t all = data.size();
    while (!data.empty()) {
      const ssize_t n = ::pread(fd_for(offset, data), data.data(), data.size(), off_t(offset));
      if (n < 0 && is_tried_again()) continue;
      if (n < 0) fail("read", all, offset);
      if (n == 0)
        throw Error(
            ErrorCode::kIo,
            fmt::format("the file in {} ({}) ends at byte {} of {}: its disk has lost what was written; "
                        "resume from the last checkpoint, with a folder on another disk",
                        options_.directory, options_.field, offset, options_.bytes));
      data = data.subspan(size_t(n)), offset += uint64_t(n);
    }
  }
  uint64_t size() override {
    struct stat s;
    if (::fstat(fd_, &s) != 0) fail("stat", 0, 0);
    return uint64_t(s.st_size);
  }
  void sync() override {
    if (::fsync(fd_) != 0) fail("sync", 0, 0);
  }

 private:
  int fd_for(uint64_t offset, std::span<const std::byte> data) const {
    const bool whole = (offset | data.size() | reinterpret_cast<uintptr_t>(data.data())) % kScratchBlock == 0;
    return whole && direct_ ? direct_fd_ : fd_;
  }
  /// After a call that failed: it was interrupted, or the file system refuses to go past its cache after all.
  bool is_tried_again() {
    if (errno == EINTR) return true;
    return errno == EINVAL && direct_.exchange(false);
  }
  [[noreturn]] void fail(const char* what, size_t bytes, uint64_t offset) const {
    const int reason = errno;
    throw Error(
        ErrorCode::kIo,
        fmt::format("cannot {} {} bytes at byte {} of the file in {} ({}): {}; {}", what, bytes, offset,
                    options_.directory, options_.field, std::strerror(reason),
                    reason == ENOSPC || reason == EDQUOT
                        ? fmt::format("it needs {} for each rank of the node: make room, or resume with "
                                      "another folder",
                                      memory_text(double(options_.bytes)))
                        : "resume from the last checkpoint, with a folder on another disk"));
  }

  const int fd_, direct_fd_;
  std::atomic<bool> direct_{direct_fd_ >= 0};
  const ScratchFileOptions options_;
};

[[noreturn]] void refuse(const ScratchFileOptions& o, const std::string& why, const std::string& remedy) {
  throw Error(ErrorCode::kPreflight, fmt::format("{} {} {}; {}", o.field, o.directory, why, remedy));
}

constexpr const char* kAnother = "name a folder on a disk of each node";

/// -1: the file system has no files without names.
int open_without_name(const std::string& directory) {
  return ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
}

/// Its name is gone before the file has any content.
int open_and_remove(const std::string& directory) {
  std::string path = directory + "/trainctl-scratch-XXXXXX";
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd >= 0) ::unlink(path.c_str());
  return fd;
}

}  // namespace

void require_scratch_folder(const ScratchFileOptions& o) {
  struct stat s;
  const bool is_there = ::stat(o.directory.c_str(), &s) == 0;
  if (!is_there || !S_ISDIR(s.st_mode))
    refuse(o, !is_there && errno == ENOENT ? "does not exist on this node" : "is no folder on this node",
           "make it on each node, or name another");
  struct statfs in;
  if (::statfs(o.directory.c_str(), &in) != 0)
    refuse(o, fmt::format("cannot be looked at: {}", std::strerror(errno)), kAnother);
  if (const char* kind = no_local_disk(uint64_t(in.f_type)))
    refuse(o, fmt::format("is on {}, not on a local disk", kind), kAnother);
  const uint64_t room = uint64_t(in.f_bavail) * uint64_t(in.f_frsize);
  if (room < o.bytes)
    refuse(
        o,
        fmt::format("has room for {}, and this rank's part of the state takes {}", memory_text(double(room)),
                    memory_text(double(o.bytes))),
        "name a folder on a larger disk, or use more data-parallel ranks with parallelism.zero_stage 1 to 3");
}

const char* no_local_disk(uint64_t type) {
  static constexpr std::pair<uint64_t, const char*> kOthers[] = {{0x6969, "NFS"},
                                                                 {0xff534d42, "CIFS"},
                                                                 {0xfe534d42, "SMB"},
                                                                 {0x0bd00bd0, "Lustre"},
                                                                 {0x00c36400, "CephFS"},
                                                                 {0x47504653, "GPFS"},
                                                                 {0x19830326, "BeeGFS"},
                                                                 {0x5346414f, "AFS"},
                                                                 {0x01021997, "9p"},
                                                                 {0x65735546, "FUSE"},
                                                                 {0x20030528, "OrangeFS"},
                                                                 {0x01021994, "memory (tmpfs)"},
                                                                 {0x858458f6, "memory (ramfs)"}};
  for (const auto& [other, name] : kOthers)
    if (type == other) return name;
  return nullptr;
}

std::unique_ptr<File> create_scratch_file(const ScratchFileOptions& o) {
  require_scratch_folder(o);
  int fd = open_without_name(o.directory);
  if (fd < 0 && errno != EACCES) fd = open_and_remove(o.directory);
  if (fd < 0) refuse(o, fmt::format("takes no file: {}", std::strerror(errno)), kAnother);
  // Not every file system goes past its cache; a file without a name is opened again by its number.
  const int direct = ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  auto file = std::make_unique<ScratchFile>(fd, direct, o);
  const int taken = ::fallocate(fd, 0, 0, off_t(std::max<uint64_t>(o.bytes, 1))) == 0 ? 0 : errno;
  if (taken == ENOSPC || taken == EDQUOT || taken == EFBIG)
    refuse(o,
           fmt::format("has no room for the {} of this rank's part of the state: {}",
                       memory_text(double(o.bytes)), std::strerror(taken)),
           "name a folder on a larger disk");
  if (taken != 0 && ::ftruncate(fd, off_t(o.bytes)) != 0)
    refuse(o, fmt::format("takes no file of {}: {}", memory_text(double(o.bytes)), std::strerror(errno)),
           kAnother);
  return file;
}

}  // namespace trainctl
