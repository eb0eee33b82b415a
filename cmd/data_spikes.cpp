// trainctl data spikes: which data a run read when its loss left its level, and which it will never train.
#include <memory>

#include "cmd/data.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/observe/spike_data.h"

namespace trainctl::cmd {
namespace {

int spikes(const RunArguments& arguments, const Context& context) {
  FileSystem& fs = real_file_system();
  const RunDirectory run = find_run(arguments).run;
  const ParsedJob job =
      parse_job({.text = fs.read_text(run.job()), .file = run.job(), .overrides = {}, .environment = {}});
  if (!job.ok()) throw Error(ErrorCode::kSpec, fmt::format("{} cannot be read", run.job()));
  print_result("data-spikes", render_spike_data(spike_data(fs, run, job.job), context.json), context);
  return kExitDone;
}

}  // namespace

void add_data_spikes(CommandLine& group, Context& context) {
  auto arguments = std::make_shared<RunArguments>();
  CommandLine command = group.add_subcommand(
      "spikes", "the data that a run read when its loss left its level, and what it never trains");
  add_run_arguments(command, *arguments, false);
  when_chosen(command, context, [arguments, &context] { return spikes(*arguments, context); });
}

}  // namespace trainctl::cmd
