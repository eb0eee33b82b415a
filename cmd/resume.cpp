// trainctl resume: continues a run from its newest usable checkpoint, on the same or another mesh.
#include <memory>

#include "cmd/chosen_mesh.h"
#include "cmd/runs.h"
#include "cmd/verify.h"
#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/supervise/start/launch.h"
#include "runtime/supervise/start/submit.h"

namespace trainctl::cmd {
namespace {

struct ResumeOptions {
  RunArguments run;
  std::vector<std::string> overrides;
  std::string step = "latest", take_over;
  int64_t max_steps = 0, verify_steps = 0;
  bool detach = false, in_allocation = false, requeue = false, allow_other_bits = false, from_scratch = false;
};

/// In the job of `launch --submit`, the run ends where the submitted job says.
void take_manners(const ResumeOptions& options, ResumeRequest& request) {
  request.requeue = options.requeue;
  if (!options.in_allocation) return;
  if (!allocation_from_environment(process_variables()))
    throw Error(ErrorCode::kUsage, "--in-allocation is for the script of a Slurm job, and this is none; "
        "leave it out");
  const auto record = read_slurm_record(real_file_system(), request.run);
  if (!record) return;
  request.requeue = request.requeue || (record->requeue && !record->chain);
  if (record->chain) request.chain = record->name;
}

std::optional<int64_t> step_of(const ResumeOptions& options, const FoundRun& found) {
  if (options.step == "latest") return found.step;
  const auto step = whole_number(options.step);
  if (!step)
    throw Error(ErrorCode::kUsage,
                fmt::format("--step {} is neither a step number nor `latest`", options.step));
  if (found.step && *found.step != int64_t(*step))
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--step {} contradicts the checkpoint given, which is of step {}", *step, *found.step));
  return int64_t(*step);
}

/// With --allow-other-bits, a width beyond the run's lanes takes the lanes that a launch at this width would.
std::vector<std::string> with_lanes_for_width(const ParsedJob& before, const ParseInput& spec,
                                              std::vector<std::string> overrides) {
  for (const std::string& text : overrides)
    if (text.starts_with("parallelism.lanes=")) return overrides;
  std::vector<std::string> with_lanes = overrides;
  with_lanes.push_back("parallelism.lanes=auto");
  ParseInput wider = spec;
  wider.overrides = with_lanes;
  const ParsedJob now = parse_job(wider);
  return now.ok() && now.job.parallelism.data > before.job.parallelism.lanes ? with_lanes : overrides;
}

/// Before the run goes on. Throws Error(kCheckpoint) if the steps before its checkpoint differ.
void verify_first(const ResumeOptions& options, const RunDirectory& run, const std::optional<int64_t>& step,
                  const Context& context) {
  // A run that goes on refuses the resume, or has ranks that need no checkpoint.
  if (supervisor_state(real_file_system(), run) != SupervisorState::none) return;
  const Verified v = verify_run({.run = run, .steps = options.verify_steps, .to = step}, context);
  for (const std::string& line : v.lines())
    if (!context.quiet() || v.verdict == VerifyVerdict::different)
      fmt::print(stderr, "verify      {}\n", line);
  if (v.verdict != VerifyVerdict::different) return;
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("the run does not go on: {}; see trainctl verify, or resume from an older checkpoint with "
                  "--step, or without --verify",
                  v.why));
}

int resume(const ResumeOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const FoundRun found = find_run(options.run);
  const std::optional<int64_t> step = step_of(options, found);
  if (step && options.from_scratch)
    throw Error(ErrorCode::kUsage,
                "--from-scratch begins at the run's start; leave out the step, or the flag");
  const auto identity = read_identity(fs, found.run);
  const std::string text = fs.read_text(found.run.job());
  // Specs of older runs have relative paths, which begin at the folder of the launch.
  const std::string folder = identity ? identity->working_directory : "";
  ParsedJob before =
      parse_job({.text = text, .file = found.run.job(), .folder = folder, .overrides = {}, .environment = {}});
  std::vector<std::string> overrides =
      before.ok() ? with_world_size(before, options.overrides) : options.overrides;
  if (overrides.size() > options.overrides.size() && !context.quiet())
    fmt::print(stderr, "the mesh given has another size than the run's: -s {}\n", overrides.back());
  if (before.ok() && options.allow_other_bits)
    overrides = with_lanes_for_width(
        before, {.text = text, .file = found.run.job(), .folder = folder, .overrides = {}, .environment = {}},
        std::move(overrides));
  auto now = load_job_text(text, found.run.job(), overrides, context, folder);
  if (!now) return exit_status(ErrorCode::kSpec);
  require_mesh(now->job.parallelism.mesh_from, "resume");
  const auto branch_step = step ? step : step_to_branch_from(fs, found.run, now->job.schedule.total_steps);
  const std::string command = branch_command(found.run.path, branch_step, options.overrides);
  if (const auto refused = refused_on_resume(before, *now, command); !refused.empty()) return report_mistakes(refused, context);
  if (const auto refused = refused_other_lanes(before, *now);
      before.ok() && !options.allow_other_bits && !refused.empty())
    return report_mistakes(refused, context);
  if (options.verify_steps > 0) verify_first(options, found.run, step, context);
  outlive_readers();
  ResumeRequest request{.run = found.run,
                        .before = std::move(before),
                        .now = std::move(*now),
                        .program = own_program(),
                        .step = step,
                        .from_scratch = options.from_scratch,
                        .max_steps = options.max_steps,
                        .take_over = options.take_over};
  take_manners(options, request);
  const auto supervise = [&] {
    TerminalConsole console(console_options(context));
    return report_result(resume_run(request, fs, real_clock(), console), context);
  };
  return options.detach ? detach(found.run, supervise, context) : supervise();
}

}  // namespace

void add_resume(CommandLine& app, Context& context) {
  auto options = std::make_shared<ResumeOptions>();
  CommandLine command =
      app.add_subcommand("resume", "continue a run from its newest state, on the same or another mesh");
  add_run_arguments(command, options->run, true);
  add_set_option(command, options->overrides);
  command.add_flag("--detach", options->detach, "return once the run has started; its supervisor stays in "
                                                "the background");
  command.add_flag("--allow-other-bits", options->allow_other_bits,
                   "allow another parallelism.lanes, or a parallelism.data beyond the run's lanes: the "
                   "sums are rounded in another order from there on");
  command.add_option("--step", options->step, "begin from the checkpoint of this step, or `latest`")
      .type_name("N|latest");
  command.add_flag("--from-scratch", options->from_scratch,
                   "begin again where the run began; its checkpoints are moved aside");
  command.add_option("--max-steps", options->max_steps, "save and stop after this step")
      .positive()
      .type_name("N");
  command.add_flag(
      "--verify", options->verify_steps,
      "first compute the steps before the checkpoint again, from the checkpoint before it "
      "(--verify=K: at least K steps), and compare them bit for bit; if they differ, the run does "
      "not go on");
  command
      .add_option("--take-over", options->take_over,
                  "take the place of a supervisor that died (used by agents)")
      .type_name("WHY")
      .hide();
  command
      .add_flag("--in-allocation", options->in_allocation,
                "used by the script of a Slurm job that `launch --submit` wrote")
      .hide();
  command.add_flag("--requeue", options->requeue, "inside a Slurm job: give the job back to the queue when "
                                                  "its time is over");
  when_chosen(command, context, [options, &context] { return resume(*options, context); });
}

}  // namespace trainctl::cmd
