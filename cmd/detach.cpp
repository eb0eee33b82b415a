// launch --detach and resume --detach: the supervisor continues in the background; the command returns
// when ranks train.
#include <sys/wait.h>

#include <filesystem>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/machine/process.h"
#include "runtime/run/record/journal.h"

namespace trainctl::cmd {
namespace {

constexpr double kGoingLimitS = 300;
constexpr double kDetachLookS = 0.05;

int status_of(const std::function<int()>& supervise) try {
  return supervise();
} catch (const Error& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return exit_status(error.code());
} catch (const std::exception& error) {
  fmt::print(stderr, "internal error: {}\n", error.what());
  return exit_status(ErrorCode::kInternal);
}

}  // namespace

int detach(const RunDirectory& run, const std::function<int()>& supervise, const Context& context) {
  FileSystem& fs = real_file_system();
  const std::string log = run.path + ".console.log", name = command_name(run);
  const double begin_unix_s = real_clock().unix_s();
  fs.make_directories(std::filesystem::path(run.path).parent_path().string());
  const pid_t child = fork_detached(log, [&] { return status_of(supervise); });
  const double until_s = real_clock().monotonic_s() + kGoingLimitS;
  while (real_clock().monotonic_s() < until_s) {
    if (const std::optional<int> status = reap(child)) {
      fmt::print(stderr, "{}", tail_of(log, 20));
      return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
    }
    // A damaged one is of an earlier start.
    const auto known = try_read_status(fs, run.status()).status;
    if (known && known->state == RunState::running && known->updated_unix_s >= begin_unix_s) break;
    real_clock().sleep_s(kDetachLookS);
  }
  if (context.json) {
    print_json("detached", {{"run_id", folder_name(run)},
                            {"directory", run.path},
                            {"pid", child},
                            {"log", log},
                            {"next", "trainctl status " + name}});
    return kExitDone;
  }
  fmt::print("run {} is going (supervisor pid {}); it prints to {}\n", name, child, log);
  fmt::print("next: trainctl status {}\n", name);
  return kExitDone;
}

}  // namespace trainctl::cmd
