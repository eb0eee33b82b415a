// trainctl stop: asks a run's supervisor to save and stop, or to stop now, and waits until it has.
#include <signal.h>

#include <memory>

#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_status.h"

namespace trainctl::cmd {
namespace {

struct Options {
  RunArguments run;
  bool now = false, no_wait = false;
};

int stop(const Options& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const FoundRun found = find_run(options.run);
  const auto identity = read_identity(fs, found.run);
  const std::string id = identity ? identity->run_id : found.run.path;
  const auto place = supervisor_place(fs, found.run);
  if (place && !place->here && place->pid)
    throw Error(ErrorCode::kUsage, fmt::format("the supervisor of run {} (pid {}) is on {}, not here; run `trainctl stop {}` there",
                                               id, place->pid, place->host, id));
  const auto pid = supervisor_of(fs, found.run);
  if (!pid)
    throw Error(ErrorCode::kUsage, fmt::format("run {} is not running; see `trainctl status {}`", id, id));
  if (::kill(*pid, options.now ? SIGQUIT : SIGTERM) != 0)
    throw Error(ErrorCode::kUsage, fmt::format("the supervisor of run {} (pid {}) cannot be signalled: {}", id,
                                               *pid, std::strerror(errno)));
  if (!context.quiet())
    fmt::print(stderr, "run {}: {}\n", id,
               options.now ? "stopping now" : "stopping after this step and saving");
  if (options.no_wait) return kExitDone;
  // The lock is free once the supervisor has ended; a save may take as long as it takes.
  while (supervisor_of(fs, found.run) == pid) real_clock().sleep_s(0.05);
  const auto known = status_of_run(fs, found.run);
  if (!known) return kExitDone;
  const RunStatus& status = known->status;
  if (context.json) fmt::print("{}\n", status.to_json());
  if (!context.quiet())
    fmt::print(stderr, "run {} is {} at step {}. next: {}\n", id, status.state, status.step, status.advice);
  return kExitDone;
}

}  // namespace

void add_stop(CommandLine& app, Context& context) {
  auto options = std::make_shared<Options>();
  CommandLine command = app.add_subcommand("stop", "save and stop a run");
  add_run_arguments(command, options->run, true);
  command.add_flag("--now", options->now, "stop at once, without saving");
  command.add_flag("--no-wait", options->no_wait, "return at once: do not wait until the run has stopped");
  when_chosen(command, context, [options, &context] { return stop(*options, context); });
}

}  // namespace trainctl::cmd
