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
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
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

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace trainctl::data
