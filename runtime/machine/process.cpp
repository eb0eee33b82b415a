#include "runtime/machine/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

extern char** environ;

namespace trainctl {
namespace {

int pidfd_open(pid_t pid) { return int(::syscall(SYS_pidfd_open, pid, 0)); }

/// nullopt: it cannot be opened.
std::optional<std::string> try_read_proc(pid_t pid, const char* name) {
  const int fd = ::open(fmt::format("/proc/{}/{}", pid, name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string text;
  char buffer[8192];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, size_t(n));
  ::close(fd);
  return text;
}

std::string read_proc(pid_t pid, const char* name) { return try_read_proc(pid, name).value_or(""); }

/// Whether it is a process that will have an environment again: no zombie, none that exits, no thread of the
/// kernel.
bool lives_on(pid_t pid) {
  constexpr unsigned kExiting = 0x4, kOfKernel = 0x200000;  // PF_EXITING, PF_KTHREAD
  const std::string stat = read_proc(pid, "stat");
  const size_t at = stat.rfind(')');
  char state = 'Z';
  unsigned flags = 0;
  return at != std::string::npos &&
         std::sscanf(stat.c_str() + at + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) == 2 &&
         state != 'Z' && state != 'X' && !(flags & (kExiting | kOfKernel));
}

bool has_mark(pid_t pid, const std::string& mark) {
  // For a moment a process that execve replaces has neither words nor an environment. Who looks for what is
  // to be killed must not miss it.
  constexpr int kMostTries = 200, kEmptyTries = 5;
  constexpr double kMomentS = 0.001;
  for (int tries = 0, empty = 0; tries < kMostTries && empty < kEmptyTries; ++tries) {
    // NUL-terminated NAME=value.
    const std::optional<std::string> text = try_read_proc(pid, "environ");
    if (!text) return false;
    if (!text->empty()) return (std::string(1, '\0') + *text).find(mark) != std::string::npos;
    if (!lives_on(pid)) return false;
    if (!read_proc(pid, "cmdline").empty()) ++empty;
    real_clock().sleep_s(kMomentS);
  }
  return false;
}

std::string mark_of(const std::string& name, const std::string& value) {
  std::string mark(1, '\0');
  mark += name + "=" + value;
  mark.push_back('\0');
  return mark;
}

std::vector<std::string> merged_environment(const Environment& set, const std::vector<std::string>& unset) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    bool left_out = std::find(unset.begin(), unset.end(), name) != unset.end();
    for (const auto& [key, value] : set) left_out = left_out || key == name;
    if (!left_out) result.push_back(text);
  }
  for (const auto& [key, value] : set) result.push_back(key + "=" + value);
  return result;
}

/// Signals unblocked (but `blocked`) and default in the child, and `flags`. Its process group is its own.
class SpawnAttributes {
 public:
  explicit SpawnAttributes(short flags, const std::vector<int>& blocked = {}) {
    ::posix_spawnattr_init(&attributes_);
    sigset_t mask, all;
    ::sigemptyset(&mask);
    for (const int signal : blocked) ::sigaddset(&mask, signal);
    ::sigfillset(&all);
    ::posix_spawnattr_setflags(&attributes_, short(flags | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setsigmask(&attributes_, &mask);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
  }
  ~SpawnAttributes() { ::posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

pid_t start_detached(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                     const std::string& log) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_adddup2(&files, 1, 2);
  const SpawnAttributes attributes(POSIX_SPAWN_SETSID);
  std::vector<std::string> arguments = argv, variables = environment;
  pid_t pid = -1;
  const int rc = ::posix_spawnp(&pid, argv[0].c_str(), &files, attributes.get(),
                                pointers_to(arguments).data(), pointers_to(variables).data());
  ::posix_spawn_file_actions_destroy(&files);
  if (rc != 0)
    throw Error(ErrorCode::kLauncher, fmt::format("cannot start {}: {}", argv[0], std::strerror(rc)));
  return pid;
}

pid_t fork_detached(const std::string& log, const std::function<int()>& main) {
  const pid_t child = ::fork();
  if (child < 0)
    throw Error(ErrorCode::kLauncher, fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (child > 0) return child;
  ::setsid();
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out >= 0 ? out : null, STDOUT_FILENO);
  ::dup2(out >= 0 ? out : null, STDERR_FILENO);
  const int status = main();
  std::fflush(nullptr);
  ::_exit(status);
}

void become_own_program(std::vector<std::string> argv, std::vector<std::string> environment) {
  ::execve("/proc/self/exe", pointers_to(argv).data(), pointers_to(environment).data());
}

std::optional<int> reap(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, WNOHANG) == child ? std::optional(status) : std::nullopt;
}

std::optional<pid_t> ended_child() {
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return std::nullopt;
  return info.si_pid;
}

void await_children() {
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
}

ChildProcess::ChildProcess(const std::vector<std::string>& argv, const Environment& set,
                           const std::vector<std::string>& unset, const std::vector<int>& blocked) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ErrorCode::kLauncher, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, ends[1], 1);
  ::posix_spawn_file_actions_adddup2(&files, ends[1], 2);
  const SpawnAttributes attributes(POSIX_SPAWN_SETPGROUP, blocked);
  std::vector<std::string> arguments = argv, environment = merged_environment(set, unset);
  const int rc = ::posix_spawnp(&pid_, argv[0].c_str(), &files, attributes.get(),
                                pointers_to(arguments).data(), pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&files);
  ::close(ends[1]);
  output_fd_ = ends[0];
  ::fcntl(output_fd_, F_SETFL, O_NONBLOCK);
  if (rc != 0) {
    pid_ = -1;
    close_output();
    throw Error(ErrorCode::kLauncher, fmt::format("cannot start {}: {}", argv[0], std::strerror(rc)));
  }
  exit_fd_ = pidfd_open(pid_);
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !reap()) {
    signal_group(SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  close_output();
  if (exit_fd_ >= 0) ::close(exit_fd_);
}

void ChildProcess::close_output() {
  if (output_fd_ >= 0) ::close(output_fd_);
  output_fd_ = -1;
}

std::string ChildProcess::read_output() {
  std::string text;
  char buffer[8192];
  while (output_fd_ >= 0 && text.size() < kMostOutputBytes) {
    const ssize_t n = ::read(output_fd_, buffer, sizeof buffer);
    if (n > 0) {
      text.append(buffer, size_t(n));
    } else if (n == 0) {
      close_output();
    } else if (errno != EINTR) {
      break;
    }
  }
  return text;
}

std::optional<int> ChildProcess::reap() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_;
}

void ChildProcess::signal_group(int signal) const {
  // After reaping, the number of the group may belong to somebody else.
  if (pid_ > 0 && !status_) ::kill(-pid_, signal);
}

void ChildProcess::release() { pid_ = -1; }

std::vector<pid_t> processes_marked(const std::string& name, const std::string& value) {
  std::vector<pid_t> found;
  const std::string mark = mark_of(name, value);
  DIR* proc = ::opendir("/proc");
  if (!proc) return found;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = pid_t(std::atoi(entry->d_name));
    if (pid > 0 && pid != ::getpid() && has_mark(pid, mark)) found.push_back(pid);
  }
  ::closedir(proc);
  return found;
}

bool process_marked(pid_t pid, const std::string& name, const std::string& value) {
  return has_mark(pid, mark_of(name, value));
}

bool process_has(pid_t pid, const std::string& name) {
  std::string mark(1, '\0');
  return has_mark(pid, mark + name + "=");
}

int signal_marked(const std::string& name, const std::string& value, int signal) {
  const std::string mark = mark_of(name, value);
  int left = 0;
  for (const pid_t pid : processes_marked(name, value)) {
    const int fd = pidfd_open(pid);
    if (fd < 0) continue;
    // The handle is on one process; looking again makes sure that it is the marked one.
    if (has_mark(pid, mark)) {
      ++left;
      if (signal) ::syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0);
      if (signal && signal != SIGKILL)
        ::syscall(SYS_pidfd_send_signal, fd, SIGCONT, nullptr, 0);  // a stopped one acts on nothing
    }
    ::close(fd);
  }
  return left;
}

namespace {

struct Lineage {
  pid_t pid = 0, parent = 0, session = 0;
  char state = '?';
};

/// "pid (name, which may hold anything) state ppid pgrp session ..."
std::optional<Lineage> lineage_of_process(pid_t pid) {
  const std::string stat = read_proc(pid, "stat");
  const size_t at = stat.rfind(')');
  Lineage line{.pid = pid};
  int group = 0;
  if (at == std::string::npos ||
      std::sscanf(stat.c_str() + at + 1, " %c %d %d %d", &line.state, &line.parent, &group, &line.session) != 4)
    return std::nullopt;
  return line;
}

}  // namespace

int kill_descendants() {
  std::vector<Lineage> all;
  DIR* proc = ::opendir("/proc");
  if (!proc) return 0;
  while (const dirent* entry = ::readdir(proc))
    if (const pid_t pid = pid_t(std::atoi(entry->d_name)); pid > 0)
      if (const auto line = lineage_of_process(pid)) all.push_back(*line);
  ::closedir(proc);
  const pid_t own_session = ::getsid(0);
  std::vector<pid_t> below = {::getpid()};
  int killed = 0;
  for (size_t i = 0; i < below.size(); ++i)
    for (const Lineage& line : all) {
      if (line.parent != below[i] || line.session != own_session || line.state == 'Z') continue;
      below.push_back(line.pid);
      ++killed;
    }
  for (size_t i = 1; i < below.size(); ++i) ::kill(below[i], SIGKILL);
  return killed;
}

std::optional<uint64_t> process_start_ticks(pid_t pid) {
  const std::string stat = read_proc(pid, "stat");
  // "pid (name, which may hold anything) state ppid ...": field 22 is the start, field 3 the first after the
  // last ')'.
  size_t at = stat.rfind(')');
  if (at == std::string::npos) return std::nullopt;
  if (stat.size() > at + 2 && stat[at + 2] == 'Z') return std::nullopt;
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  return std::strtoull(stat.c_str() + at + 1, nullptr, 10);
}

bool process_stopped(pid_t pid) {
  const std::string stat = read_proc(pid, "stat");
  const size_t at = stat.rfind(')');
  return at != std::string::npos && stat.size() > at + 2 && (stat[at + 2] == 'T' || stat[at + 2] == 't');
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = std::getenv("PATH");
  std::string rest = path ? path : "/usr/local/bin:/usr/bin:/bin";
  for (size_t begin = 0; begin <= rest.size();) {
    const size_t end = std::min(rest.find(':', begin), rest.size());
    const std::string candidate = rest.substr(begin, end - begin) + "/" + name;
    struct stat s;
    if (::stat(candidate.c_str(), &s) == 0 && S_ISREG(s.st_mode) && ::access(candidate.c_str(), X_OK) == 0)
      return candidate;
    begin = end + 1;
  }
  return "";
}

}  // namespace trainctl
