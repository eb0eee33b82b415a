#include "runtime/machine/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl {
namespace {

constexpr const char* kParents[] = {"/tmp", "/dev/shm"};
constexpr const char* kPrefix = "trainctl.";
/// A folder without its lock file yet may be a moment old.
constexpr double kYoungS = 60;

/// Tries until a folder is made and locked: a sweeper may find it before it is locked, and remove it.
constexpr int kTries = 100;

/// Locks a folder that was just made or found. -1: a sweeper has it, or has removed it meanwhile.
int lock_of(const std::string& path) {
  const std::string file = path + "/lock";
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  struct stat mine, there;
  // A file system without locks has no sweeper either, which removes only what it can lock.
  if (fd >= 0 && try_lock(fd, true).state != LockState::held && ::fstat(fd, &mine) == 0 &&
      ::stat(file.c_str(), &there) == 0 && mine.st_ino == there.st_ino)
    return fd;
  if (fd >= 0) ::close(fd);
  return -1;
}

}  // namespace

SessionFolders::Folder SessionFolders::make(const std::string& parent) {
  for (int tries = 0; tries < kTries; ++tries) {
    std::string path = parent + "/" + kPrefix + "XXXXXX";
    if (!::mkdtemp(path.data()))
      throw Error(ErrorCode::kPreflight,
                  fmt::format("cannot make a scratch folder in {}: {}", parent, std::strerror(errno)));
    if (const int fd = lock_of(path); fd >= 0) return {path, fd};
    const int why = errno;
    ::rmdir(path.c_str());
    errno = why;
  }
  throw Error(ErrorCode::kPreflight,
              fmt::format("cannot lock a scratch folder in {}: {}", parent, std::strerror(errno)));
}

SessionFolders::Folder SessionFolders::take(const std::string& path) {
  for (int tries = 0; tries < kTries; ++tries) {
    struct stat s;
    if (::mkdir(path.c_str(), 0700) != 0 &&
        (errno != EEXIST || (::lstat(path.c_str(), &s) == 0 && (!S_ISDIR(s.st_mode) || s.st_uid != ::geteuid()))))
      throw Error(ErrorCode::kPreflight,
                  fmt::format("cannot make the scratch folder {}: {}", path, std::strerror(errno)));
    if (const int fd = lock_of(path); fd >= 0) return {path, fd};
    real_clock().sleep_s(0.001);  // a sweeper holds it for a moment
  }
  throw Error(ErrorCode::kPreflight, fmt::format("cannot lock the scratch folder {}", path));
}

void SessionFolders::remove(Folder& folder) {
  if (folder.path.empty()) return;
  try {
    real_file_system().remove_tree(folder.path);
  } catch (const std::exception&) {
    // Something still writes there; the next sweep gets it.
  }
  if (folder.lock_fd >= 0) ::close(folder.lock_fd);
}

SessionFolders::SessionFolders() : session_(make(kParents[0])) {
  try {
    shared_memory_ = make(kParents[1]);
  } catch (const Error&) {
    remove(session_);
    throw;
  }
}

SessionFolders::SessionFolders(const std::string& session, const std::string& shared_memory)
    : session_(take(session)) {
  try {
    shared_memory_ = take(shared_memory);
  } catch (const Error&) {
    remove(session_);
    throw;
  }
}

SessionFolders::~SessionFolders() {
  remove(session_);
  remove(shared_memory_);
}

bool SessionFolders::exist() const {
  FileSystem& fs = real_file_system();
  return fs.is_directory(session()) && fs.is_directory(shared_memory());
}

void SessionFolders::sweep() {
  FileSystem& fs = real_file_system();
  for (const std::string parent : kParents) {
    if (!fs.is_directory(parent)) continue;
    for (const std::string& name : fs.list(parent)) {
      const std::string path = parent + "/" + name;
      struct stat s;
      if (!name.starts_with(kPrefix) || ::lstat(path.c_str(), &s) != 0 || !S_ISDIR(s.st_mode) ||
          s.st_uid != ::geteuid())
        continue;
      Folder left{path, ::open((path + "/lock").c_str(), O_RDWR | O_CLOEXEC)};
      const bool nobodys = left.lock_fd >= 0 ? try_lock(left.lock_fd).state == LockState::taken
                                             : real_clock().unix_s() - double(s.st_mtime) > kYoungS;
      if (nobodys) {
        remove(left);
      } else if (left.lock_fd >= 0) {
        ::close(left.lock_fd);
      }
    }
  }
}

}  // namespace trainctl
