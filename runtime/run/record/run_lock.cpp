// The lock of a run: flock where the file system has it, else a symbolic link that names its owner.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/machine/process.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {
namespace {

/// A process, so that its number used again, another boot and another container all differ.
struct Owner {
  int pid = 0;
  unsigned long long start_ticks = 0;
  std::string boot, pid_namespace, host;

  std::string text() const { return fmt::format("{} {} {} {} {}", pid, start_ticks, boot, pid_namespace, host); }
};

std::string link_target(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t n = ::readlink(path.c_str(), text, sizeof text);
  return n <= 0 ? "" : std::string(text, size_t(n));
}

Owner this_process() {
  Owner owner{.pid = ::getpid(), .start_ticks = process_start_ticks(::getpid()).value_or(0)};
  std::ifstream("/proc/sys/kernel/random/boot_id") >> owner.boot;
  owner.pid_namespace = link_target("/proc/self/ns/pid");
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, HOST_NAME_MAX);
  owner.host = host;
  for (std::string* field : {&owner.boot, &owner.pid_namespace, &owner.host})
    if (field->empty()) *field = "?";
  return owner;
}

std::optional<Owner> parse_owner(const std::string& text) {
  Owner owner;
  char boot[64] = "?", pid_namespace[64] = "?", host[HOST_NAME_MAX + 1] = "?";
  static_assert(HOST_NAME_MAX >= 63);
  if (std::sscanf(text.c_str(), "%d %llu %63s %63s %63s", &owner.pid, &owner.start_ticks, boot, pid_namespace, host) < 5)
    return std::nullopt;
  owner.boot = boot, owner.pid_namespace = pid_namespace, owner.host = host;
  return owner;
}

enum class Life { alive, gone, out_of_sight };

/// Processes of another machine or container cannot be seen from here.
Life life_of(const Owner& owner) {
  const Owner self = this_process();
  if (owner.boot != self.boot || owner.pid_namespace != self.pid_namespace) return Life::out_of_sight;
  const auto start = process_start_ticks(owner.pid);
  return start && *start == owner.start_ticks ? Life::alive : Life::gone;
}

std::string place_of(const std::string& owner_text) {
  const auto owner = parse_owner(owner_text);
  return owner ? fmt::format("pid {} on {}", owner->pid, owner->host) : "";
}

/// What the file holds, asked anew of its server (an open does that on NFS); nothing if it cannot be read.
std::optional<std::string> fresh_text(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  char text[1024];
  const ssize_t n = ::read(fd, text, sizeof text);
  ::close(fd);
  return n < 0 ? std::nullopt : std::optional(std::string(text, size_t(n)));
}

std::string lock_file(const RunDirectory& run) { return run.file("supervisor.lock"); }
std::string owner_link(const RunDirectory& run) { return run.file("supervisor.owner"); }

[[noreturn]] void refuse_out_of_sight(const std::string& link, const std::string& owner) {
  throw Error(ErrorCode::kPreflight,
              fmt::format("{} names a supervisor that cannot be seen from here ({}), and this file system has no "
                          "flock to ask; if that process is gone, remove {} and try again",
                          link, owner.empty() ? "unreadable" : owner, link));
}

/// Removes the link of an owner that is gone. Only the holder of a second link may do so: of two processes that find the same
/// dead owner, the slower would otherwise remove the link of the faster. False: another process is at it.
bool remove_dead_owner(const std::string& link, const std::string& dead, const std::string& self) {
  const std::string guard = link + ".takeover";
  if (::symlink(self.c_str(), guard.c_str()) != 0) {
    const auto other = parse_owner(link_target(guard));
    if (!other || life_of(*other) != Life::alive) refuse_out_of_sight(guard, link_target(guard));
    return false;
  }
  if (link_target(link) == dead) ::unlink(link.c_str());
  ::unlink(guard.c_str());
  return true;
}

/// Makes the link that names this process. False: a living process has it.
bool take_link(const std::string& link, const std::string& self, int flock_reason) {
  for (int tries = 0; tries < 3; ++tries) {
    if (::symlink(self.c_str(), link.c_str()) == 0) return true;
    if (errno != EEXIST)
      throw Error(
          ErrorCode::kPreflight,
          fmt::format("the file system of {} has neither flock ({}) nor symbolic links ({}), so two "
                      "supervisors of a run could not be distinguished; put the runs elsewhere with -s "
                      "observability.run_dir=DIR",
                      link, std::strerror(flock_reason), std::strerror(errno)));
    const std::string text = link_target(link);
    if (text.empty()) continue;  // given back this moment
    const auto owner = parse_owner(text);
    const Life life = owner ? life_of(*owner) : Life::out_of_sight;
    if (life == Life::out_of_sight) refuse_out_of_sight(link, text);
    if (life == Life::alive || !remove_dead_owner(link, text, self)) return false;
  }
  return false;
}

}  // namespace

std::optional<RunLock> RunLock::try_take(const RunDirectory& run) {
  const std::string path = lock_file(run);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(ErrorCode::kPreflight, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  RunLock lock(fd, path);
  const std::string self = this_process().text();
  const LockAttempt attempt = try_lock(fd);
  if (attempt.state == LockState::held) return std::nullopt;
  if (attempt.state == LockState::unsupported) {
    if (!take_link(owner_link(run), self, attempt.reason)) return std::nullopt;
    lock.link_ = owner_link(run);
    lock.note_ = fmt::format("the file system of {} has no flock ({}): {} is the lock of this run; after a crash of this "
                             "machine remove it by hand before another machine resumes",
                             run.path, std::strerror(attempt.reason), lock.link_);
  }
  lock.before_ = place_of(fresh_text(path).value_or(""));
  lock.owner_ = self;
  // Who holds it: for `stop`, and for a holder before that was only stopped, maybe on another machine.
  const std::string text = self + "\n";
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) != ssize_t(text.size()) ||
      (::fsync(fd) != 0 && errno != EINVAL))
    throw Error(ErrorCode::kPreflight, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  return lock;
}

RunLock::~RunLock() {
  if (fd_ < 0) return;
  if (!link_.empty() && link_target(link_) == owner_) ::unlink(link_.c_str());
  ::close(fd_);
}

std::function<void()> RunLock::check() const {
  return [path = path_, owner = owner_, link = link_] {
    const bool linked = !link.empty();
    const std::optional<std::string> now = linked ? std::optional(link_target(link)) : fresh_text(path);
    if (!now || *now == (linked ? owner : owner + "\n")) return;
    if (linked && now->empty()) return;  // removed by hand, and not taken yet
    const std::string place = place_of(*now);
    throw RunTaken(
        ErrorCode::kLauncher,
        fmt::format("another supervisor{} has taken this run while this one did not run or did not reach {}; "
                    "this one ends and changes nothing more; watch the run with `trainctl status`",
                    place.empty() ? "" : " (" + place + ")", path));
  };
}

std::optional<SupervisorPlace> supervisor_place(FileSystem& fs, const RunDirectory& run) {
  const std::string path = lock_file(run);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const LockState state = try_lock(fd).state;
  ::close(fd);
  if (state == LockState::taken) return std::nullopt;
  const bool linked = state == LockState::unsupported;
  const std::string text = linked ? link_target(owner_link(run)) : fs.read_text(path);
  if (linked && text.empty()) return std::nullopt;
  const auto owner = parse_owner(text);
  if (!owner) return SupervisorPlace{};  // held, but its line is being written
  switch (life_of(*owner)) {
    case Life::alive: return SupervisorPlace{owner->host, owner->pid, true};
    case Life::out_of_sight: return SupervisorPlace{owner->host, owner->pid, false};
    // A lock of the kernel is held by someone, whatever its file says.
    case Life::gone: return linked ? std::nullopt : std::optional(SupervisorPlace{});
  }
  return std::nullopt;
}

std::optional<int> supervisor_of(FileSystem& fs, const RunDirectory& run) {
  const auto place = supervisor_place(fs, run);
  return place && place->here ? std::optional(place->pid) : std::nullopt;
}

}  // namespace trainctl
