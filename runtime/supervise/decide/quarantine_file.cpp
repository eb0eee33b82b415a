// The list of quarantined nodes as a file: read, changed under a lock, replaced in one step.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/supervise/decide/quarantine.h"

namespace trainctl {
namespace {

constexpr double kLockLimitS = 5, kLockPollS = 0.02;

/// flock on PATH.lock, which stays. Where the file system has no flock, the file PATH.held, which is made in
/// one step.
class ListLock {
 public:
  ListLock(const std::string& path, Clock& clock) : held_(path + ".held") {
    const std::string lock = path + ".lock";
    fd_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw Error(ErrorCode::kIo, fmt::format("cannot open {}: {}", lock, std::strerror(errno)));
    const double deadline_s = clock.monotonic_s() + kLockLimitS;
    while (!try_take()) {
      if (clock.monotonic_s() > deadline_s) {
        ::close(fd_);
        throw Error(
            ErrorCode::kIo,
            fmt::format("another process holds the lock of {} for more than {:.0f} s{}", path, kLockLimitS,
                        by_file_ ? fmt::format("; if that process is gone, remove {}", held_) : ""));
      }
      clock.sleep_s(kLockPollS);
    }
  }
  ~ListLock() {
    if (by_file_) ::unlink(held_.c_str());
    ::close(fd_);
  }
  ListLock(const ListLock&) = delete;
  ListLock& operator=(const ListLock&) = delete;

 private:
  bool try_take() {
    if (!by_file_) {
      const LockState state = try_lock(fd_).state;
      if (state != LockState::unsupported) return state == LockState::taken;
      by_file_ = true;
    }
    const int made = ::open(held_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (made >= 0) ::close(made);
    return made >= 0;
  }

  const std::string held_;
  int fd_ = -1;
  bool by_file_ = false;
};

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

QuarantineFile::QuarantineFile(FileSystem& fs, Clock& clock, std::string path, std::string cluster)
    : fs_(fs), clock_(clock), path_(std::move(path)), cluster_(std::move(cluster)) {}

QuarantineList QuarantineFile::read() const {
  QuarantineList list;
  try {
    if (fs_.exists(path_)) list = QuarantineList::from_json(fs_.read_text(path_));
    list.set_cluster(cluster_);
    return list;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUsage) throw;
    throw Error(ErrorCode::kUsage,
                fmt::format("{} cannot be used: {}; repair or remove it", path_, error.what()));
  }
}

void QuarantineFile::update(const std::function<void(QuarantineList&)>& change) {
  if (const size_t slash = path_.rfind('/'); slash != std::string::npos && slash > 0)
    fs_.make_directories(path_.substr(0, slash));
  const ListLock lock(path_, clock_);
  QuarantineList list = read();
  change(list);
  fs_.replace_text(path_, list.to_json());
}

std::string quarantine_path(const std::string& shared) {
  if (!shared.empty()) return shared;
  if (const std::string path = from_environment("TRAINCTL_QUARANTINE"); !path.empty()) return path;
  if (const std::string config = from_environment("XDG_CONFIG_HOME"); !config.empty())
    return config + "/trainctl/quarantine.json";
  const std::string home = from_environment("HOME");
  return home.empty() ? "" : home + "/.config/trainctl/quarantine.json";
}

QuarantineFile quarantine_of_user(FileSystem& fs, Clock& clock, const std::string& given,
                                  std::string cluster) {
  const std::string path = quarantine_path(given);
  if (path.empty())
    throw Error(ErrorCode::kUsage,
                "there is no home folder for the list of quarantined nodes; name one with --list FILE or "
                "$TRAINCTL_QUARANTINE");
  return {fs, clock, path, std::move(cluster)};
}

}  // namespace trainctl
