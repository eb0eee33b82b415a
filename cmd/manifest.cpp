// trainctl manifest: prepares a run and prints what starts it on a cluster that is not Slurm: a Kubernetes
// JobSet.
#include <memory>

#include "cmd/chosen_mesh.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/supervise/start/submit.h"

namespace trainctl::cmd {
namespace {

struct ManifestOptions {
  JobArguments job;
  PodRequest pods;
  std::string program = "/usr/local/bin/trainctl", run_dir, device;
  bool dry_run = false;
};

int manifest(ManifestOptions options, const Context& context) {
  set_run_folder(options.job.overrides, options.run_dir);
  auto job = load_job(options.job, context);
  if (job)
    job = with_chosen_mesh(std::move(*job), options.job,
                           choosing_for(job->job, options.device, "trainctl manifest JOB"), context);
  if (!job) return exit_status(ErrorCode::kSpec);
  if (const int status = check_start(*job, options.job, StartsAt::elsewhere, context); status != kExitDone)
    return status;
  const ManifestRequest request{
      .submit = {.job = std::move(*job), .program = options.program, .command = context.arguments},
      .pods = options.pods};
  FileSystem& fs = real_file_system();
  const Manifest done =
      options.dry_run ? preview_manifest(request, fs) : write_manifest(request, fs, real_clock());
  if (context.json)
    print_json("manifest", {{"run_id", done.id}, {"directory", done.run.path}, {"text", done.text}});
  else
    fmt::print("{}", done.text);
  if (options.dry_run || context.quiet()) return kExitDone;
  fmt::print(stderr, "run {} is made for a JobSet · {}\nnext: kubectl apply -f {}\n", done.id, done.run.path,
             done.run.file("jobset.yaml"));
  return kExitDone;
}

}  // namespace

void add_manifest(CommandLine& app, Context& context) {
  auto options = std::make_shared<ManifestOptions>();
  CommandLine command =
      app.add_subcommand("manifest", "prepare a run for Kubernetes and print the JobSet that starts it");
  add_job_arguments(command, options->job);
  command.add_flag("--dry-run", options->dry_run, "print the manifest only, and make no run");
  command.add_option("--image", options->pods.image, "container image that holds trainctl")
      .required()
      .type_name("IMAGE");
  command.add_option("--claim", options->pods.claim, "volume claim (ReadWriteMany) that holds the runs")
      .required()
      .type_name("CLAIM");
  command
      .add_option("--mount", options->pods.mount,
                  "where pods mount the volume; runs must have the same path "
                  "here and in the pods")
      .required()
      .type_name("DIR");
  command.add_option("--namespace", options->pods.name_space, "the JobSet's namespace").type_name("WORD");
  add_nodes_device(command, options->device);
  command.add_option("--program", options->program, "path of trainctl in the image")
      .show_default()
      .type_name("PATH");
  command
      .add_option("--run-dir", options->run_dir,
                  "folder of the runs (default: $TRAINCTL_RUN_DIR, else observability.run_dir)")
      .type_name("DIR");
  when_chosen(command, context, [options, &context] { return manifest(*options, context); });
}

}  // namespace trainctl::cmd
