// trainctl launch: checks a job, starts its ranks and supervises them to the end.
#include <memory>

#include "cmd/chosen_mesh.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/supervise/start/launch.h"
#include "runtime/supervise/start/start.h"
#include "runtime/supervise/start/submit.h"

namespace trainctl::cmd {
namespace {

struct LaunchOptions {
  JobArguments job;
  bool dry_run = false, detach = false, submit = false, requeue = false;
  int chain = 1;
  int64_t max_steps = 0;
  std::string from, run_dir, device;
};

int print_preview(const LaunchPreview& preview, const Context& context) {
  if (context.json) {
    print_json("launch-preview", {{"directory", preview.run_directory},
                                  {"files", preview.files},
                                  {"branch", preview.branch},
                                  {"memory", preview.memory},
                                  {"note", preview.copies_note},
                                  {"placement", preview.placement},
                                  {"agents", preview.agents},
                                  {"command", preview.command}});
    return kExitDone;
  }
  fmt::print("would make, in {}:\n", preview.run_directory);
  for (const std::string& file : preview.files) fmt::print("  {}\n", file);
  if (!preview.branch.empty()) fmt::print("branch: {}\n", preview.branch);
  fmt::print("memory: {}\n", preview.memory);
  if (!preview.copies_note.empty()) fmt::print("note: {}\n", preview.copies_note);
  if (!preview.placement.empty()) fmt::print("{}", preview.placement);
  if (!preview.agents.empty())
    fmt::print("would start an agent on each node, for example by:\n  {}\n", preview.agents);
  fmt::print(
      "{}:\n  {}\n",
      preview.agents.empty() ? "would run" : "the agents start the ranks; where they cannot, mpirun does",
      preview.command);
  return kExitDone;
}

int submit(const LaunchOptions& options, ParsedJob job, const Context& context) {
  FileSystem& fs = real_file_system();
  const SubmitRequest request{
      .job = std::move(job), .program = own_program(), .command = context.arguments, .chain = options.chain};
  if (options.dry_run) {
    const Submitted preview = preview_submit(request, fs, real_clock());
    if (context.json)
      print_json("submit-preview",
                 {{"directory", preview.run.path}, {"jobs", options.chain}, {"script", preview.script}});
    else
      fmt::print("{}", preview.script);
    fmt::print(stderr, "would be written to {}/job.sh and submitted{}\n", preview.run.path,
               options.chain > 1 ? fmt::format(" {} times; one job runs at a time", options.chain) : "");
    return kExitDone;
  }
  const Submitted done = submit_run(request, fs, real_clock());
  std::string ids;
  for (const std::string& id : done.record.jobs) ids += (ids.empty() ? "" : " ") + id;
  if (context.json)
    print_json("submitted", {{"run_id", done.id},
                             {"directory", done.run.path},
                             {"slurm", parse_ordered_json(done.record.to_json())}});
  else
    fmt::print("{}\n", ids);
  const std::string name = command_name(done.run);
  if (!context.quiet())
    fmt::print(stderr,
               "run {} is in Slurm's queue as job {} · {}\n"
               "next: trainctl status {}   trainctl stop {}   logs: {}/logs/slurm-JOB.out\n",
               done.id, ids, done.run.path, name, name, done.run.path);
  return kExitDone;
}

int launch(LaunchOptions options, const Context& context) {
  set_run_folder(options.job.overrides, options.run_dir);
  LaunchRequest request{.program = own_program(), .command = context.arguments, .max_steps = options.max_steps};
  if (!options.from.empty())
    request.from = find_branch_point(real_file_system(), options.from, options.run_dir.empty() ? default_run_root() : options.run_dir,
                                     [](const std::string& path, const std::string& reason) {
                                       fmt::print(stderr, "skipped {}: {}\n", path, reason);
                                     });
  auto job = load_job(options.job, context);
  if (job) {
    const MeshChoosing choosing = options.submit
                                      ? choosing_for(job->job, options.device, "trainctl launch JOB --submit")
                                      : choosing_here(job->job);
    job = with_chosen_mesh(std::move(*job), options.job, choosing, context);
  }
  if (!job) return exit_status(ErrorCode::kSpec);
  const StartsAt place = options.submit ? StartsAt::elsewhere : StartsAt::now;
  if (const int status = check_start(*job, options.job, place, context); status != kExitDone) return status;
  if (options.submit) return submit(options, std::move(*job), context);
  request.job = std::move(*job);
  request.requeue = options.requeue;
  if (request.from)
    if (const auto refused = refused_on_branch(request.from->job, request.job); !refused.empty())
      return report_mistakes(refused, context);
  if (options.dry_run) return print_preview(preview_launch(request, real_file_system()), context);
  outlive_readers();
  if (options.detach) {
    const std::string root = absolute_path(request.job.job.observability.run_dir);
    std::string id = request.job.job.observability.run_id;
    if (id.empty()) {
      id = new_run_id(real_file_system(), root, request.job.job.name);
      request.job = with_decided(request.job, {"observability.run_id=" + id}, "--set");
    }
    const auto supervise = [&] {
      TerminalConsole console(console_options(context));
      return report_result(launch_run(request, real_file_system(), real_clock(), console), context);
    };
    return detach({root + "/" + id}, supervise, context);
  }
  TerminalConsole console(console_options(context));
  if (const auto risk = risk_of(request.job.job.checkpoint)) console.note(*risk);
  return report_result(launch_run(request, real_file_system(), real_clock(), console), context);
}

}  // namespace

void add_launch(CommandLine& app, Context& context) {
  auto options = std::make_shared<LaunchOptions>();
  CommandLine command = app.add_subcommand("launch", "start a run and supervise it");
  add_job_arguments(command, options->job);
  command.add_flag("--dry-run", options->dry_run, "print what would be written and started, and do nothing");
  command.add_flag("--detach", options->detach, "return once the run has started; its supervisor stays in "
                                                "the background");
  Option max_steps =
      command.add_option("--max-steps", options->max_steps, "save and stop after this step; `resume` "
                                                            "continues");
  max_steps.positive().type_name("N");
  Option from = command.add_option(
      "--from", options->from,
      "begin from this checkpoint of another run, with its weights, optimizer state, step and data position");
  from.type_name("RUN[@STEP]");
  Option submit = command.add_flag("--submit", options->submit,
      "prepare the run, submit it to Slurm as a job, and return");
  submit.excludes(from).excludes(max_steps);
  command.add_option("--chain", options->chain, "submit N Slurm jobs; each resumes where the previous one "
                                                "stopped")
      .needs(submit)
      .range(1, 1000)
      .type_name("N");
  add_nodes_device(command, options->device).needs(submit);
  command.add_flag("--requeue", options->requeue, "inside a Slurm job: give the job back to the queue when "
                                                  "its time is over");
  command.add_option("--run-dir", options->run_dir, "folder of the runs (default: $TRAINCTL_RUN_DIR, else observability.run_dir)")
      .type_name("DIR");
  when_chosen(command, context, [options, &context] { return launch(*options, context); });
}

}  // namespace trainctl::cmd
