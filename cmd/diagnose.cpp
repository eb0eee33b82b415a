// trainctl diagnose: a verdict on a run that hangs or has crashed: who, where, since when, what to do.
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/run/record/known_status.h"

namespace trainctl::cmd {
namespace {

int diagnose_run(const RunArguments& arguments, const Context& context) {
  FileSystem& fs = real_file_system();
  const FoundRun found = find_run(arguments);
  const auto known = status_of_run(fs, found.run);
  if (!known)
    throw Error(ErrorCode::kUsage, fmt::format("{} has no status yet: the run never started", found.run.path));
  if (!known->note.empty()) fmt::print(stderr, "warning: {}\n", known->note);
  const Diagnosis d = diagnose(known->status, supervisor_state(fs, found.run), real_clock().unix_s());
  if (context.json) {
    print_json_text("diagnose", to_json(d), -1);
    return kExitDone;
  }
  fmt::print("verdict    {}\n           {}\n", d.verdict, d.summary);
  for (const std::string& line : d.details) fmt::print("           {}\n", line);
  if (!d.advice.empty()) fmt::print("next       {}\n", d.advice);
  return kExitDone;
}

}  // namespace

void add_diagnose(CommandLine& app, Context& context) {
  auto arguments = std::make_shared<RunArguments>();
  CommandLine command = app.add_subcommand("diagnose", "report why a run hangs or crashed: which rank, "
                                                       "where, since when");
  add_run_arguments(command, *arguments, false);
  when_chosen(command, context, [arguments, &context] { return diagnose_run(*arguments, context); });
}

}  // namespace trainctl::cmd
