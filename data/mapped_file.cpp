#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl::data {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const auto fail = [&](const char* what, int error) {
    throw Error(ErrorCode::kData, fmt::format("cannot {} {}: {}", what, path, std::strerror(error)));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is not waited for
  if (fd < 0) fail("open", errno);
  struct stat info;
  const int stat_error = ::fstat(fd, &info) == 0 ? 0 : errno;
  if (stat_error != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    if (stat_error != 0) fail("stat", stat_error);
    throw Error(ErrorCode::kData, fmt::format("{} is {}", path, S_ISDIR(info.st_mode) ? "a folder, not a file" : "not a regular file"));
  }
  if (info.st_size > 0) {
    void* address = ::mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    const int map_error = errno;
    ::close(fd);
    if (address == MAP_FAILED) fail("map", map_error);
    data_ = static_cast<const std::byte*>(address);
    size_ = size_t(info.st_size);
    identity_ = {info.st_dev, info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
    range_ = NamedRange(data_, size_, path_);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop_pages() const {
  // A hint: if it is refused the pages stay, which costs only memory that the system may reclaim.
  if (data_ != nullptr) (void)::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

void MappedFile::require_unchanged() const {
  struct stat now;
  if (data_ == nullptr || ::stat(path_.c_str(), &now) != 0) return;
  if (now.st_dev != identity_.device || now.st_ino != identity_.inode) return;
  if (uint64_t(now.st_size) != size_)
    throw Error(
        ErrorCode::kData,
        fmt::format("{} has {} bytes now and had {} when it was opened: it was {} while "
                    "it is read; put the old file back",
                    path_, now.st_size, size_, uint64_t(now.st_size) < size_ ? "cut short" : "appended to"));
  if (now.st_mtim.tv_sec == identity_.modified_s && now.st_mtim.tv_nsec == identity_.modified_ns) return;
  throw Error(
      ErrorCode::kData,
      fmt::format("{} was written to while it is read; make sure that it is the file that the run began "
                  "with, and replace token files only by rename",
                  path_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      identity_(other.identity_),
      range_(std::move(other.range_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(identity_, other.identity_);
  std::swap(range_, other.range_);
  return *this;
}

}  // namespace trainctl::data
