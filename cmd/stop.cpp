// trainctl stop: asks a run's supervisor to save and stop, or to stop now, and waits for its end.
#include <signal.h>

#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/run/record/known_status.h"
#include "runtime/run/record/stop_request.h"
#include "runtime/supervise/start/submit.h"

namespace trainctl::cmd {
namespace {

struct StopOptions {
  RunArguments run;
  bool now = false, no_wait = false;
  double timeout_s = 600;
};

/// While `stop` waits, it reports this often what it waits for.
constexpr double kStopSayEveryS = 5;

/// What the run's ranks do now, in a few words.
std::string what_ranks_do(FileSystem& fs, const FoundRun& found) {
  constexpr size_t kMostLines = 3;
  const auto status = try_read_status(fs, found.run.status()).status;
  const auto lines = status ? rank_lines(*status) : std::vector<std::string>{};
  if (lines.empty()) return "no rank has started yet";
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) text += (i ? "; " : "") + lines[i];
  return text + (lines.size() > kMostLines ? "; ..." : "");
}

/// Waits until the supervisor has ended, which frees the run's lock. Error(kHang) after the limit.
void wait_for_end(const StopOptions& options, const Context& context, const FoundRun& found,
    const std::string& id,
                  const SupervisorPlace& supervisor) {
  FileSystem& fs = real_file_system();
  Clock& clock = real_clock();
  const double begin_s = clock.monotonic_s();
  double said_s = begin_s;
  const auto goes_on = [&] {
    const auto now = supervisor_place(fs, found.run);
    return now && (now->pid == 0 || (now->pid == supervisor.pid && now->host == supervisor.host));
  };
  while (goes_on()) {
    const double now_s = clock.monotonic_s();
    if (now_s - begin_s > options.timeout_s)
      throw Error(ErrorCode::kHang,
                  fmt::format("run {} has not stopped within {}: {}; it still will if it can. Wait longer with `trainctl stop {} "
                              "--timeout SECONDS`, or {}",
                              id, short_duration(options.timeout_s), what_ranks_do(fs, found), id,
                              options.now ? fmt::format("end its supervisor with kill -9 {} on {}",
                                  supervisor.pid, supervisor.host)
                                          : fmt::format("end it without saving with `trainctl stop {} --now`", id)));
    if (now_s - said_s > kStopSayEveryS && !context.quiet()) {
      said_s = now_s;
      fmt::print(stderr, "run {}: waiting for {} of at most {}: {}\n", id, short_duration(now_s - begin_s),
                 short_duration(options.timeout_s), what_ranks_do(fs, found));
    }
    clock.sleep_s(0.05);
  }
}

/// Cancels jobs of the run in Slurm's queue: they would continue it.
int cancel_jobs(FileSystem& fs, const RunDirectory& run, const std::string& id, const Context& context) {
  const auto record = read_slurm_record(fs, run);
  const int cancelled = record ? cancel_queued(*record) : 0;
  if (cancelled > 0 && !context.quiet())
    fmt::print(stderr, "run {}: {} that waited in Slurm's queue cancelled\n", id, count_of(cancelled, "job"));
  return cancelled;
}

/// The submitted job left the queue before it began.
int never_started(FileSystem& fs, const RunDirectory& run, const Context& context) {
  auto status = try_read_status(fs, run.status()).status;
  if (status && status->state == RunState::submitted) {
    status->state = RunState::stopped;
    status->exit_code = exit_status(ErrorCode::kStopped);
    status->reason = "taken out of Slurm's queue on request";
    status->advice = "trainctl resume " + command_name(run);
    write_status(fs, run.status(), *status);
  }
  if (context.json && status) fmt::print("{}", status_text(*status, SupervisorState::none));
  return kExitDone;
}

void ask_to_stop(FileSystem& fs, const RunDirectory& run, const std::string& id,
    const SupervisorPlace& supervisor,
                 bool now) {
  if (!supervisor.here) return request_stop(fs, run, now ? StopLevel::now : StopLevel::save_and_stop);
  if (::kill(supervisor.pid, now ? SIGQUIT : SIGTERM) != 0)
    throw Error(ErrorCode::kUsage, fmt::format("the supervisor of run {} (pid {}) cannot be signalled: {}",
        id,
                                               supervisor.pid, std::strerror(errno)));
}

int stop(const StopOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const FoundRun found = find_run(options.run);
  const auto identity = read_identity(fs, found.run);
  const std::string id = identity ? identity->run_id : found.run.path;
  const int cancelled = cancel_jobs(fs, found.run, id, context);
  const auto place = supervisor_place(fs, found.run);
  if (!place && cancelled > 0) return never_started(fs, found.run, context);
  if (!place || !place->pid)
    throw Error(ErrorCode::kUsage, fmt::format("run {} is not running; see `trainctl status {}`", id, id));
  ask_to_stop(fs, found.run, id, *place, options.now);
  if (!context.quiet())
    fmt::print(stderr, "run {}: {}\n", id,
               options.now ? "stopping now" : "stopping after this step and saving");
  if (options.no_wait) {
    if (context.json)
      print_json("stop", {{"run_id", id}, {"directory", found.run.path}, {"now", options.now}});
    return kExitDone;
  }
  wait_for_end(options, context, found, id, *place);
  const auto known = status_of_run(fs, found.run);
  if (!known) return kExitDone;
  const RunStatus& status = known->status;
  if (context.json) fmt::print("{}", status_text(status, SupervisorState::none));
  if (!context.quiet())
    fmt::print(stderr, "run {} is {} at step {}. next: {}\n", id, word_of(status.state), status.step,
               status.advice);
  return kExitDone;
}

}  // namespace

void add_stop(CommandLine& app, Context& context) {
  auto options = std::make_shared<StopOptions>();
  CommandLine command = app.add_subcommand("stop", "save and stop a run");
  add_run_arguments(command, options->run, true);
  command.add_flag("--now", options->now, "stop at once without a save");
  command.add_option("--timeout", options->timeout_s, "stop waiting after this many seconds; the run still "
                                                      "stops")
      .type_name("SECONDS")
      .positive()
      .show_default();
  command.add_flag("--no-wait", options->no_wait, "return at once; do not wait for the end of the run");
  when_chosen(command, context, [options, &context] { return stop(*options, context); });
}

}  // namespace trainctl::cmd
