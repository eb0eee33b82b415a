#include "runtime/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

std::atomic<void (*)(const std::string&)> g_no_descriptor = nullptr;

[[noreturn]] void fail(const char* what, const std::string& path) {
  const int reason = errno;
  const std::string text = fmt::format("cannot {} {}: {}", what, path, std::strerror(reason));
  if (const auto handler = g_no_descriptor.load(); handler && (reason == EMFILE || reason == ENFILE))
    handler(text);
  throw Error(ErrorCode::kIo, text);
}

/// Blocks of this size, at offsets and addresses that it divides, suit every device.
constexpr size_t kDirectAlignment = 4096;
/// Below it a write, or a read, past the system's cache gains nothing.
constexpr size_t kLeastDirect = size_t(1) << 20, kLeastDirectRead = size_t(128) << 10;

/// More than this of a file is not left to its sync: on a slow disk that would take many minutes, in which
/// nothing shows that it gets on.
constexpr size_t kMostCached = size_t(64) << 20;

/// The errors with which a file system says that it does not know a call (or a flag of it) at all.
bool is_unsupported(int reason) { return reason == EINVAL || reason == ENOSYS || reason == EOPNOTSUPP; }

class PosixFile final : public File {
 public:
  PosixFile(int fd, int mode, std::string path) : fd_(fd), mode_(mode), path_(std::move(path)) {}
  ~PosixFile() override {
    ::close(fd_);
    if (direct_fd_ >= 0) ::close(direct_fd_);
  }

  void write_at(uint64_t offset, std::span<const std::byte> data) override {
    const size_t direct = write_direct(offset, data);
    data = data.subspan(direct);
    offset += direct;
    while (!data.empty()) {
      const auto part = data.first(std::min<size_t>(data.size(), kMostCached));
      const ssize_t n = ::pwrite(fd_, part.data(), part.size(), off_t(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n == 0) errno = ENOSPC;  // it takes no more
      if (n <= 0) fail("write", path_);
      data = data.subspan(size_t(n));
      offset += uint64_t(n);
      cached_ += uint64_t(n);
      if (cached_ >= kMostCached) write_cached();
    }
  }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    const size_t direct = read_direct(offset, data);
    data = data.subspan(direct);
    offset += direct;
    while (!data.empty()) {
      const ssize_t n = ::pread(fd_, data.data(), data.size(), off_t(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("read", path_);
      if (n == 0)
        throw Error(ErrorCode::kIo,
                    fmt::format("{} ends at byte {}, {} more were expected", path_, offset, data.size()));
      data = data.subspan(size_t(n));
      offset += uint64_t(n);
    }
  }
  uint64_t size() override {
    struct stat s;
    if (::fstat(fd_, &s) != 0) fail("stat", path_);
    return uint64_t(s.st_size);
  }
  void sync() override {
    if (::fsync(fd_) != 0) fail("sync", path_);
  }
  void drop_cache() override { ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

 private:
  /// Writes the whole blocks of a large aligned write from the caller's memory to the medium: a copy
  /// into the system's cache costs more than a fast disk takes. Returns the bytes written; 0 where that
  /// is not possible.
  size_t write_direct(uint64_t offset, std::span<const std::byte> data) {
    if (data.size() < kLeastDirect || !opens_direct(offset, data.data())) return 0;
    const size_t bytes = data.size() / kDirectAlignment * kDirectAlignment;
    size_t written = 0;
    while (direct_ && written < bytes) {
      const ssize_t n = ::pwrite(direct_fd_, data.data() + written, bytes - written, off_t(offset + written));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && !is_unsupported(errno)) fail("write", path_);
      // What is left of a short write is aligned no more.
      direct_ = n > 0 && size_t(n) % kDirectAlignment == 0;
      written += size_t(std::max<ssize_t>(n, 0));
    }
    return written;
  }
  /// Waits until what the system's cache holds of this file is on its way to the medium.
  void write_cached() {
    cached_ = 0;
    constexpr unsigned kAll =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (::sync_file_range(fd_, 0, 0, kAll) == 0 || is_unsupported(errno) || errno == ESPIPE) return;
    fail("write", path_);
  }
  /// Reads the whole blocks of a large aligned read from the medium to the caller's memory. As above.
  size_t read_direct(uint64_t offset, std::span<std::byte> data) {
    if (data.size() < kLeastDirectRead || !opens_direct(offset, data.data())) return 0;
    const size_t bytes = data.size() / kDirectAlignment * kDirectAlignment;
    size_t read = 0;
    while (direct_ && read < bytes) {
      const ssize_t n = ::pread(direct_fd_, data.data() + read, bytes - read, off_t(offset + read));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && !is_unsupported(errno)) fail("read", path_);
      if (n == 0) break;  // the end of the file
      direct_ = n > 0 && size_t(n) % kDirectAlignment == 0;
      read += size_t(std::max<ssize_t>(n, 0));
    }
    return read;
  }
  bool opens_direct(uint64_t offset, const std::byte* data) {
    if ((offset | reinterpret_cast<uintptr_t>(data)) % kDirectAlignment != 0) return false;
    if (direct_ && direct_fd_ < 0)
      direct_fd_ = ::open(fmt::format("/proc/self/fd/{}", fd_).c_str(), mode_ | O_DIRECT | O_CLOEXEC);
    direct_ = direct_ && direct_fd_ >= 0;
    return direct_;
  }

  const int fd_, mode_;
  const std::string path_;
  bool direct_ = true;   ///< the file system has not refused it
  uint64_t cached_ = 0;  ///< written to the system's cache since write_cached
  int direct_fd_ = -1;
};

/// After a failed stat: false if nothing is there. A disk that does not answer must not look like one without
/// the file: what is absent is made anew, or passed over.
bool fails_unless_absent(const std::string& path) {
  const bool is_broken = errno == EIO || errno == ESTALE || errno == ETIMEDOUT || errno == EHOSTDOWN ||
                         errno == ENOTCONN || errno == EREMOTEIO || errno == ENOMEM;
  if (is_broken) fail("look for", path);
  return false;
}

/// Not of a pipe, a device or a folder: to open a pipe is to wait for who writes into it.
int open_regular(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("open", path);
  struct stat info;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  ::close(fd);
  throw Error(
      ErrorCode::kIo,
      fmt::format("{} is {}", path, S_ISDIR(info.st_mode) ? "a folder, not a file" : "not a regular file"));
}

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<File> create(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) fail("create", path);
    return std::make_unique<PosixFile>(fd, O_RDWR, path);
  }
  std::unique_ptr<File> open_read(const std::string& path) override {
    return std::make_unique<PosixFile>(open_regular(path, O_RDONLY), O_RDONLY, path);
  }
  std::unique_ptr<File> open_write(const std::string& path) override {
    return std::make_unique<PosixFile>(open_regular(path, O_RDWR), O_RDWR, path);
  }
  void make_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0755) == 0) return;
    if (errno != EEXIST || !is_directory(path)) fail("create the folder", path);
  }
  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("rename", from + " to " + to);
  }
  bool try_rename_no_replace(const std::string& from, const std::string& to) override {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
    if (is_unsupported(errno)) return false;
    fail("rename", from + " to " + to);
  }
  void remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) fail("remove", path);
  }
  void remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) fail("remove the folder", path);
  }
  bool try_sync_directory(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail("open the folder", path);
    const int reason = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    if (is_unsupported(reason)) return false;
    errno = reason;
    if (reason != 0) fail("sync the folder", path);
    return true;
  }
  std::vector<std::string> list(const std::string& path) override {
    DIR* dir = ::opendir(path.c_str());
    if (!dir) fail("list", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int reason = errno;
    ::closedir(dir);
    errno = reason;
    if (reason != 0) fail("list", path);  // part of the names would look like all of them
    std::sort(names.begin(), names.end());
    return names;
  }
  bool exists(const std::string& path) override {
    struct stat s;
    return ::lstat(path.c_str(), &s) == 0 || fails_unless_absent(path);
  }
  bool is_directory(const std::string& path) override {
    struct stat s;
    return ::stat(path.c_str(), &s) == 0 ? S_ISDIR(s.st_mode) : fails_unless_absent(path);
  }
  bool is_link(const std::string& path) override {
    struct stat s;
    return ::lstat(path.c_str(), &s) == 0 && S_ISLNK(s.st_mode);
  }
  std::optional<uint64_t> free_bytes(const std::string& path) override {
    struct statvfs s;
    // Some network file systems answer with zeros.
    if (::statvfs(path.c_str(), &s) != 0 || s.f_blocks == 0) return std::nullopt;
    return uint64_t(s.f_bavail) * s.f_frsize;
  }
};

class RealClock final : public Clock {
 public:
  double monotonic_s() override { return read(CLOCK_MONOTONIC); }
  double unix_s() override { return read(CLOCK_REALTIME); }
  void sleep_s(double seconds) override {
    timespec t{time_t(seconds), long((seconds - double(time_t(seconds))) * 1e9)};
    while (::nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
  }

 private:
  static double read(clockid_t id) {
    timespec t;
    ::clock_gettime(id, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
  }
};

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::span<const std::byte> bytes_in(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

LockAttempt try_lock(int fd, bool shared) {
  if (::flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return {};
  const int reason = errno;
  return {is_unsupported(reason) || reason == ENOLCK ? LockState::unsupported : LockState::held, reason};
}

std::unique_ptr<File> FileSystem::open_write(const std::string& path) {
  throw Error(ErrorCode::kIo, fmt::format("cannot open {} for writing: this file system only makes new files", path));
}

void FileSystem::rename_no_replace(const std::string& from, const std::string& to) {
  if (try_rename_no_replace(from, to)) return;
  if (exists(to))
    throw Error(ErrorCode::kIo, fmt::format("cannot rename {} to {}: {}", from, to, std::strerror(EEXIST)));
  const bool was_there = exists(from);
  try {
    rename(from, to);
  } catch (const Error&) {
    // An NFS server may have done it, lost its answer and then not found `from` when the client asked again.
    if (!was_there || exists(from) || !exists(to)) throw;
  }
}

void FileSystem::sync_directory(const std::string& path) { try_sync_directory(path); }

void FileSystem::make_directories(const std::string& path) {
  if (path.empty() || is_directory(path)) return;
  make_directories(parent_of(path));
  make_directory(path);
}

void FileSystem::remove_tree(const std::string& path) {
  if (is_link(path)) return remove_file(path);
  if (!exists(path)) return;
  if (!is_directory(path)) return remove_file(path);
  for (const std::string& name : list(path)) remove_tree(path + "/" + name);
  remove_directory(path);
}

std::string FileSystem::read_text(const std::string& path) {
  const auto file = open_read(path);
  std::string text(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void FileSystem::write_new_text(const std::string& path, const std::string& text) {
  const auto file = create(path);
  file->write_at(0, bytes_in(text));
  file->sync();
  sync_directory(parent_of(path));
}

void FileSystem::replace_text(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  if (exists(temporary)) remove_file(temporary);
  {
    const auto file = create(temporary);
    file->write_at(0, bytes_in(text));
    file->sync();
  }
  rename(temporary, path);
  sync_directory(parent_of(path));
}

void set_no_descriptor_handler(void (*handler)(const std::string& what)) { g_no_descriptor = handler; }

FileSystem& real_file_system() {
  static PosixFileSystem instance;
  return instance;
}

Clock& real_clock() {
  static RealClock instance;
  return instance;
}

}  // namespace trainctl
