// A file of a memory file system, mapped.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ckpt/memory_store.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl::ckpt {
namespace {

[[noreturn]] void fail_sharing(const char* what, const std::string& path, int reason) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {} {}: {}", what, path, std::strerror(reason)));
}

class SharedMemory final : public NodeMemory {
 public:
  SharedMemory(const std::string& path, uint64_t bytes) : bytes_(bytes) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) fail_sharing("open", path, errno);
    const int reason = prepare(fd);
    void* const data =
        reason == 0 ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)
                    : MAP_FAILED;
    const int map_reason = errno;
    ::close(fd);
    if (reason == ENOSPC) {
      ::unlink(path.c_str());
      throw Error(
          ErrorCode::kIo,
          fmt::format("{} needs {} for copies of the state, and its file system has no room for them: "
                      "give it more (mount -o remount,size=) or save without this tier",
                      path, memory_text(double(bytes))));
    }
    if (reason != 0) fail_sharing("prepare", path, reason);
    if (data == MAP_FAILED) fail_sharing("map", path, map_reason);
    data_ = static_cast<std::byte*>(data);
  }
  ~SharedMemory() override { ::munmap(data_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  uint64_t size() const override { return bytes_; }
  void write(uint64_t offset, std::span<const std::byte> data) override {
    ENSURE(offset <= bytes_ && data.size() <= bytes_ - offset, "{} bytes at {} of {}", data.size(), offset,
           bytes_);
    std::memcpy(data_ + offset, data.data(), data.size());
  }
  void read(uint64_t offset, std::span<std::byte> data) override {
    ENSURE(offset <= bytes_ && data.size() <= bytes_ - offset, "{} bytes at {} of {}", data.size(), offset,
           bytes_);
    std::memcpy(data.data(), data_ + offset, data.size());
  }
  std::span<const std::byte> mapped() const override { return {data_, bytes_}; }

 private:
  /// Reserves all pages: a page that is missing later would end the process. Returns an errno.
  int prepare(int fd) const {
    struct stat s;
    if (::fstat(fd, &s) != 0) return errno;
    if (uint64_t(s.st_size) != bytes_ && (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, off_t(bytes_)) != 0))
      return errno;
    return ::posix_fallocate(fd, 0, off_t(bytes_));
  }

  const uint64_t bytes_;
  std::byte* data_ = nullptr;
};

class ReadOnlyMemory final : public NodeMemory {
 public:
  explicit ReadOnlyMemory(const std::string& path) : path_(path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) fail_sharing("open", path, errno);
    struct stat s;
    const int reason = ::fstat(fd, &s) != 0 ? errno : 0;
    bytes_ = reason == 0 ? uint64_t(s.st_size) : 0;
    void* const data = bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    const int map_reason = errno;
    ::close(fd);
    if (reason != 0) fail_sharing("read", path, reason);
    if (bytes_ == 0) throw Error(ErrorCode::kIo, path + " is empty");
    if (data == MAP_FAILED) fail_sharing("map", path, map_reason);
    data_ = static_cast<const std::byte*>(data);
  }
  ~ReadOnlyMemory() override { ::munmap(const_cast<std::byte*>(data_), bytes_); }
  ReadOnlyMemory(const ReadOnlyMemory&) = delete;
  ReadOnlyMemory& operator=(const ReadOnlyMemory&) = delete;

  uint64_t size() const override { return bytes_; }
  void write(uint64_t, std::span<const std::byte>) override {
    throw Error(ErrorCode::kIo, path_ + " is open for reading");
  }
  void read(uint64_t offset, std::span<std::byte> data) override {
    ENSURE(offset <= bytes_ && data.size() <= bytes_ - offset, "{} bytes at {} of {}", data.size(), offset,
           bytes_);
    std::memcpy(data.data(), data_ + offset, data.size());
  }
  std::span<const std::byte> mapped() const override { return {data_, bytes_}; }

 private:
  const std::string path_;
  uint64_t bytes_ = 0;
  const std::byte* data_ = nullptr;
};

}  // namespace

std::unique_ptr<NodeMemory> open_shared_memory(const std::string& path) {
  return std::make_unique<ReadOnlyMemory>(path);
}

std::unique_ptr<NodeMemory> shared_memory(const std::string& path, uint64_t bytes) {
  ENSURE(bytes > 0, "{} with no bytes", path);
  return std::make_unique<SharedMemory>(path, bytes);
}

}  // namespace trainctl::ckpt
