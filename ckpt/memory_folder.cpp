#include "ckpt/memory_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

constexpr const char* kParent = "/dev/shm";
constexpr const char* kRunFile = "/run";
constexpr const char* kAliveFile = "/alive";

std::string prefix() { return fmt::format("trainctl-{}-", ::geteuid()); }

/// A folder of this user, and no link.
bool is_ours(const std::string& path) {
  struct stat s;
  return ::lstat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == ::geteuid();
}

/// Whether the open file is the one at the path, and not one that was removed meanwhile.
bool is_at(int fd, const std::string& path) {
  struct stat open, there;
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &there) == 0 && open.st_ino == there.st_ino;
}

enum class Lock { taken, by_another, gone };

/// Opens and locks the file `run` of the folder. Memory file systems have locks.
Lock lock_folder(const std::string& path, int flags, int& fd) {
  fd = ::open((path + kRunFile).c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Lock::gone;
  const bool is_taken = try_lock(fd).state == LockState::taken;
  if (is_taken && is_at(fd, path + kRunFile)) return Lock::taken;
  ::close(fd);
  return is_taken ? Lock::gone : Lock::by_another;
}

void remove_folder(const std::string& path) {
  FileSystem& fs = real_file_system();
  if (fs.exists(path)) fs.remove_tree(path);
}

/// Since the last owner's sign of life; infinite: it has left none.
double owner_idle_s(const std::string& folder) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  try {
    const std::string path = folder + kAliveFile;
    if (!real_file_system().exists(path)) return kNone;
    const double alive_s = std::strtod(real_file_system().read_text(path).c_str(), nullptr);
    // It is written in whole milliseconds, rounded. One from the future is of a time before a restart.
    const double idle_s = real_clock().monotonic_s() - alive_s;
    return alive_s > 0 && idle_s >= -0.001 ? idle_s : kNone;
  } catch (const Error&) {
    return kNone;
  }
}

/// A jump of the system's clock makes the one of the two wrong, so the shorter one counts.
double idle_s(const std::string& folder, const std::string& run_directory, double now_unix_s) {
  struct stat s;
  if (run_directory.empty() || ::stat((run_directory + "/status.json").c_str(), &s) != 0)
    return std::numeric_limits<double>::infinity();
  return std::min(now_unix_s - double(s.st_mtime), owner_idle_s(folder));
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
  int fd = -1;
  for (int tries = 0;; ++tries) {
    constexpr int kTries = 100;
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail(std::strerror(errno));
    if (!is_ours(path)) fail("it belongs to another user or is no folder");
    const Lock lock = lock_folder(path, O_RDWR | O_CREAT, fd);
    if (lock == Lock::taken) break;
    if (tries == kTries) fail(lock == Lock::by_another ? "another agent of this run and node owns it"
                                                       : "it was removed again and again");
    real_clock().sleep_s(0.01);  // a sweep looks at it, or has removed it
  }
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

void MemoryFolder::note_alive() noexcept {
  const int fd = ::open((path_ + kAliveFile).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  // Of one length, so that one write replaces the line.
  const std::string line = fmt::format("{:020.3f}\n", real_clock().monotonic_s());
  (void)!::pwrite(fd, line.data(), line.size(), 0);
  ::close(fd);
}

void MemoryFolder::remove() noexcept {
  try {
    remove_folder(path_);
  } catch (const std::exception&) {
    // The next sweep gets it.
  }
}

namespace {

/// What is known of a folder whose lock this process has; nullopt: it cannot be read.
std::optional<StrayMemory> described(const std::string& path, double now_unix_s) {
  FileSystem& fs = real_file_system();
  StrayMemory stray{.path = path};
  struct stat folder;
  try {
    stray.run_directory = fs.read_text(path + kRunFile);
    while (stray.run_directory.ends_with('\n')) stray.run_directory.pop_back();
    for (const std::string& file : fs.list(path)) {
      struct stat s;
      if (::lstat((path + "/" + file).c_str(), &s) == 0) stray.bytes += uint64_t(s.st_blocks) * 512;
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  // An owner that has not written its line yet has not locked the file either, or died in between.
  if (!stray.run_directory.empty())
    stray.idle_s = idle_s(path, stray.run_directory, now_unix_s);
  else if (::lstat(path.c_str(), &folder) == 0)
    stray.idle_s = now_unix_s - double(folder.st_mtime);
  return stray;
}

/// Calls `visit` for each folder without an owner, which gets none during the call.
void visit_strays(double now_unix_s, const std::function<void(const StrayMemory&)>& visit) {
  FileSystem& fs = real_file_system();
  if (!fs.is_directory(kParent)) return;
  for (const std::string& name : fs.list(kParent)) {
    const std::string path = std::string(kParent) + "/" + name;
    int fd = -1;
    if (!name.starts_with(prefix()) || !is_ours(path) || lock_folder(path, O_RDWR, fd) != Lock::taken)
      continue;
    if (const auto stray = described(path, now_unix_s)) visit(*stray);
    ::close(fd);
  }
}

}  // namespace

std::vector<StrayMemory> stray_memory(double now_unix_s) {
  std::vector<StrayMemory> strays;
  visit_strays(now_unix_s, [&](const StrayMemory& stray) { strays.push_back(stray); });
  return strays;
}

int sweep_memory(double now_unix_s) {
  int removed = 0;
  visit_strays(now_unix_s, [&](const StrayMemory& stray) {
    if (stray.idle_s <= kStrayMemoryKeptS) return;
    try {
      remove_folder(stray.path);
      ++removed;
    } catch (const Error&) {
      // The next sweep gets it.
    }
  });
  return removed;
}

}  // namespace trainctl::ckpt
