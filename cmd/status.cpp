// trainctl status: one screen on a run, live or ended; with --watch drawn again and again, with
// --serve as a page.
#include <memory>
#include <sstream>
#include <utility>

#include "cmd/runs.h"
#include "cmd/serve.h"
#include "cmd/watch.h"
#include "runtime/base/error.h"
#include "runtime/observe/report/step_rows.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/record/known_status.h"
#include "runtime/supervise/start/submit.h"

namespace trainctl::cmd {
namespace {

/// Of events.jsonl, enough to find some that concern a person.
constexpr int kEventLines = 60;

struct StatusArguments {
  RunArguments run;
  bool watch = false;
  double every_s = 1;
  std::optional<std::string> serve;  ///< the address; "": the default
};

KnownStatus known_of(const FoundRun& found) {
  auto known = status_of_run(real_file_system(), found.run);
  if (!known)
    throw Error(ErrorCode::kUsage, fmt::format("{} has no status yet: the run never started", found.run.path));
  return std::move(*known);
}

std::vector<std::string> newest_events(const RunDirectory& run) {
  std::vector<std::string> lines;
  std::istringstream text(tail_of(run.events(), kEventLines));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

report::StepRows newest_steps(const RunDirectory& run) {
  report::StepRows steps;
  std::istringstream text(tail_of(run.metrics(), StepPace::kMeanOver + 1));
  for (std::string line; std::getline(text, line);) steps.take(line);
  return steps;
}

std::string screen_of(const FoundRun& found, const KnownStatus& known, SupervisorState supervisor, Room room,
                      bool color, TimeReader& time) {
  FileSystem& fs = real_file_system();
  const report::StepRows steps = newest_steps(found.run);
  std::string text = render_status(known.status, supervisor, real_clock().unix_s(),
                                   {.columns = room.columns,
                                    .rows = room.rows,
                                    .color = color,
                                    .events = newest_events(found.run),
                                    .timed_step = steps.newest_timed(),
                                    .step_s = report::pace_of(steps.rows()).mean_s(),
                                    .time = ledger_text(ledger_now(time, known.status, supervisor))});
  if (const auto record = read_slurm_record(fs, found.run))
    for (const std::string& line : queue_lines(*record)) text += fmt::format("queue      {}\n", line);
  for (const std::string& line : superseded_lines(fs, found.run))
    text += fmt::format("set aside  {}\n", line);
  return text;
}

int watch_status(const FoundRun& found, const StatusArguments& arguments, const Context& context) {
  TimeReader time(real_file_system(), found.run);
  watch(
      [&](Room room) {
        // Read before the status: a run that ends in between is drawn as ended the next time.
        const SupervisorState supervisor = supervisor_state(real_file_system(), found.run);
        const KnownStatus known = known_of(found);
        // A supervisor that died may be replaced: by a person, or by the agents.
        const bool left = supervisor == SupervisorState::none && known.status.state != RunState::submitted &&
                          real_clock().unix_s() - known.status.updated_unix_s > kLeftS;
        const bool over = known.status.ended() || left;
        return Screen{context.json ? status_text(known.status, supervisor, time)
                                   : screen_of(found, known, supervisor, room, context.color_out, time),
                      over};
      },
      {.every_s = arguments.every_s, .plain = context.json});
  return kExitDone;
}

int status(const StatusArguments& arguments, const Context& context) {
  const FoundRun found = find_run(arguments.run);
  if (arguments.serve) return serve_status(found.run, *arguments.serve, context);
  const KnownStatus known = known_of(found);
  if (!known.note.empty()) fmt::print(stderr, "warning: {}\n", known.note);
  if (arguments.watch) return watch_status(found, arguments, context);
  const SupervisorState supervisor = supervisor_state(real_file_system(), found.run);
  TimeReader time(real_file_system(), found.run);
  if (context.json)
    fmt::print("{}", status_text(known.status, supervisor, time));
  else
    fmt::print("{}", screen_of(found, known, supervisor, {.columns = terminal_room().columns},
                               context.color_out, time));
  return kExitDone;
}

}  // namespace

void add_status(CommandLine& app, Context& context) {
  auto arguments = std::make_shared<StatusArguments>();
  CommandLine command = app.add_subcommand("status", "show one screen about a run, once or live");
  add_run_arguments(command, arguments->run, false);
  Option watch = command.add_flag("-w,--watch", arguments->watch,
                                  "redraw until the run ends; q or Ctrl-C quits");
  command.add_option("--every", arguments->every_s, "seconds between two redraws")
      .range(0.1, 3600)
      .type_name("SECONDS")
      .show_default();
  command
      .add_optional_value("--serve", arguments->serve,
                          "serve the report as a live web page, with /metrics for Prometheus (default: "
                          "127.0.0.1:7070, only for this machine)")
      .type_name("[ADDR:PORT]")
      .excludes(watch);
  when_chosen(command, context, [arguments, &context] { return status(*arguments, context); });
}

}  // namespace trainctl::cmd
