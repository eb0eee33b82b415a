// launch --detach and resume --detach: the supervisor goes on in the background, and the command returns once the run is going.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/run/record/journal.h"

namespace trainctl::cmd {
namespace {

constexpr double kGoingLimitS = 300;
constexpr double kLookS = 0.05;

[[noreturn]] void become_supervisor(const std::string& log, const std::function<int()>& supervise) {
  ::setsid();
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out >= 0 ? out : null, STDOUT_FILENO);
  ::dup2(out >= 0 ? out : null, STDERR_FILENO);
  int status = exit_status(ErrorCode::kInternal);
  try {
    status = supervise();
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    status = exit_status(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "internal error: {}\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

int detach(const RunDirectory& run, const std::function<int()>& supervise) {
  FileSystem& fs = real_file_system();
  const std::string log = run.path + ".console.log", name = command_name(run);
  const double begin_unix_s = real_clock().unix_s();
  fs.make_directories(std::filesystem::path(run.path).parent_path().string());
  const pid_t child = ::fork();
  if (child < 0) throw Error(ErrorCode::kLauncher, fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (child == 0) become_supervisor(log, supervise);
  const double until_s = real_clock().monotonic_s() + kGoingLimitS;
  while (real_clock().monotonic_s() < until_s) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      fmt::print(stderr, "{}", tail_of(log, 20));
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    try {
      const auto known = read_status(fs, run.status());
      if (known && known->state == RunState::running && known->updated_unix_s >= begin_unix_s) break;
    } catch (const Error&) {
      // Not of this start, or being replaced.
    }
    real_clock().sleep_s(kLookS);
  }
  fmt::print("run {} is going (supervisor pid {}); it prints to {}\n", name, child, log);
  fmt::print("next: trainctl status {}\n", name);
  return kExitDone;
}

}  // namespace trainctl::cmd
