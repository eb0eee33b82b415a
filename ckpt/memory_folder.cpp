#include "ckpt/memory_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

constexpr const char* kParent = "/dev/shm";
constexpr const char* kRunFile = "/run";

std::string prefix() { return fmt::format("trainctl-{}-", ::geteuid()); }

/// A folder of this user, and no link.
bool is_ours(const std::string& path) {
  struct stat s;
  return ::lstat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == ::geteuid();
}

/// Opens and locks the file `run` of the folder; -1: it is not there, or another process has the lock.
/// Memory file systems have locks.
int lock_of(const std::string& path, int flags) {
  const int fd = ::open((path + kRunFile).c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 || try_lock(fd).state == LockState::taken) return fd;
  ::close(fd);
  return -1;
}

void remove_folder(const std::string& path) {
  FileSystem& fs = real_file_system();
  if (fs.exists(path)) fs.remove_tree(path);
}

double last_sign_of_life_s(const std::string& run_directory, double now_unix_s) {
  struct stat s;
  if (run_directory.empty() || ::stat((run_directory + "/status.json").c_str(), &s) != 0)
    return std::numeric_limits<double>::infinity();
  return now_unix_s - double(s.st_mtime);
}

}  // namespace

std::string memory_folder_path(const std::string& run_directory, const std::string& node) {
  return fmt::format("{}/{}{}", kParent, prefix(), hex64(xxh3(run_directory + "\n" + node)));
}

std::unique_ptr<MemoryFolder> MemoryFolder::take(const std::string& run_directory, const std::string& node) {
  const std::string path = memory_folder_path(run_directory, node);
  const auto fail = [&](const char* why) {
    throw Error(ErrorCode::kIo, fmt::format("cannot use {} for checkpoints in memory: {}", path, why));
  };
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail(std::strerror(errno));
  if (!is_ours(path)) fail("it belongs to another user or is no folder");
  const int fd = lock_of(path, O_RDWR | O_CREAT);
  if (fd < 0) fail("another agent of this run and node owns it");
  const std::string line = run_directory + "\n";
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, line.data(), line.size(), 0) != ssize_t(line.size())) {
    const int reason = errno;
    ::close(fd);
    fail(std::strerror(reason));
  }
  return std::unique_ptr<MemoryFolder>(new MemoryFolder(path, fd));
}

std::unique_ptr<MemoryFolder> MemoryFolder::find(const std::string& run_directory, const std::string& node) {
  return is_ours(memory_folder_path(run_directory, node)) ? take(run_directory, node) : nullptr;
}

MemoryFolder::~MemoryFolder() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

void MemoryFolder::remove() noexcept {
  try {
    remove_folder(path_);
  } catch (const std::exception&) {
    // The next sweep gets it.
  }
}

std::vector<StrayMemory> stray_memory(double now_unix_s) {
  FileSystem& fs = real_file_system();
  std::vector<StrayMemory> strays;
  if (!fs.is_directory(kParent)) return strays;
  for (const std::string& name : fs.list(kParent)) {
    const std::string path = std::string(kParent) + "/" + name;
    if (!name.starts_with(prefix()) || !is_ours(path)) continue;
    const int fd = lock_of(path, O_RDWR | O_CREAT);
    if (fd < 0) continue;
    StrayMemory stray{.path = path};
    try {
      stray.run_directory = fs.read_text(path + kRunFile);
      while (stray.run_directory.ends_with('\n')) stray.run_directory.pop_back();
      for (const std::string& file : fs.list(path)) {
        struct stat s;
        if (::lstat((path + "/" + file).c_str(), &s) == 0) stray.bytes += uint64_t(s.st_blocks) * 512;
      }
      stray.idle_s = last_sign_of_life_s(stray.run_directory, now_unix_s);
      strays.push_back(std::move(stray));
    } catch (const Error&) {
      // Its owner removes it at this moment.
    }
    ::close(fd);
  }
  return strays;
}

int sweep_memory(double now_unix_s) {
  int removed = 0;
  for (const StrayMemory& stray : stray_memory(now_unix_s)) {
    if (stray.idle_s <= kStrayMemoryKeptS) continue;
    try {
      remove_folder(stray.path);
      ++removed;
    } catch (const Error&) {
      // Another process removes it, too.
    }
  }
  return removed;
}

}  // namespace trainctl::ckpt
