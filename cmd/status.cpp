// trainctl status: one screen on a run, live or ended.
#include <memory>

#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/run/known_status.h"
#include "runtime/supervise/submit.h"

namespace trainctl::cmd {
namespace {

int status(const RunArguments& arguments, const Context& context) {
  FileSystem& fs = real_file_system();
  const FoundRun found = find_run(arguments);
  const auto known = status_of_run(fs, found.run);
  if (!known)
    throw Error(ErrorCode::kUsage, fmt::format("{} has no status yet: the run never started", found.run.path));
  if (!known->note.empty()) fmt::print(stderr, "warning: {}\n", known->note);
  if (context.json) {
    fmt::print("{}\n", known->status.to_json());
  } else {
    fmt::print("{}", render_status(known->status, supervisor_state(fs, found.run), real_clock().unix_s()));
    if (const auto record = read_slurm_record(fs, found.run))
      for (const std::string& line : queue_lines(*record)) fmt::print("queue      {}\n", line);
    for (const std::string& line : superseded_lines(fs, found.run)) fmt::print("set aside  {}\n", line);
  }
  return kExitDone;
}

}  // namespace

void add_status(CommandLine& app, Context& context) {
  auto arguments = std::make_shared<RunArguments>();
  CommandLine command = app.add_subcommand("status", "one screen on a run");
  add_run_arguments(command, *arguments, false);
  when_chosen(command, context, [arguments, &context] { return status(*arguments, context); });
}

}  // namespace trainctl::cmd
