// trainctl plan: what a job will need, before anything is started.
#include <cstdio>
#include <memory>

#include "cmd/commands.h"
#include "runtime/base/error.h"
#include "runtime/plan/plan.h"

namespace trainctl::cmd {
namespace {

struct Options {
  JobArguments job;
  bool timeline = false;
  int width = 110;
};

int plan(const Options& options, const Context& context) {
  const std::optional<ParsedJob> parsed = load_job(options.job, context);
  if (!parsed) return exit_status(ErrorCode::kSpec);
  if (options.timeline) {
    fmt::print("{}", render_timeline(parsed->job, options.width));
    return kExitDone;
  }
  const DeviceKind device = device_kind(parsed->job);
  const JobPlan plan = make_plan(parsed->job, device);
  const double rate = rank_peak_flops_per_s(parsed->job, device).value_or(0);
  if (context.json) {
    fmt::print("{}\n", plan_json(parsed->job, plan, rate));
    Context in_words = context;  // stdout has the plan alone
    in_words.json = false;
    return files_exist(*parsed, options.job, in_words) ? kExitDone : exit_status(ErrorCode::kData);
  }
  fmt::print("{}", render_plan(parsed->job, plan, rate));
  // The plan needs no file; the launch that it advises does.
  if (!files_exist(*parsed, options.job, context)) return exit_status(ErrorCode::kData);
  fmt::print("next: {}\n", launch_command(options.job));
  return kExitDone;
}

}  // namespace

void add_plan(CommandLine& app, Context& context) {
  auto options = std::make_shared<Options>();
  CommandLine command = app.add_subcommand("plan", "mesh, memory, traffic and time of a job; nothing is started");
  add_job_arguments(command, options->job);
  add_no_data_flag(command, options->job);
  command.add_flag("--timeline", options->timeline, "draw the pipeline schedule of one step");
  command.add_option("--width", options->width, "columns of the timeline").range(20, 1000);
  when_chosen(command, context, [options, &context] { return plan(*options, context); });
}

}  // namespace trainctl::cmd
