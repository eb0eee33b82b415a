// trainctl validate: checks a job spec and shows the resolved job.
#include <algorithm>
#include <memory>

#include "cmd/chosen_mesh.h"
#include "cmd/commands.h"
#include "cmd/config.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/spec/pages/pages.h"

namespace trainctl::cmd {

namespace {

struct ValidateOptions {
  JobArguments job;
  bool schema = false, show_origin = false, resolved = false;
};

std::string summary(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  if (p.mesh_from == MeshFrom::automatic)
    return fmt::format("{}: {} x {} · {} x {} tokens a step · {} · the mesh is chosen at launch", job.name,
                       count_of(job.model.num_layers, "layer"), job.model.hidden_size,
                       count_of(job.batch.global_sequences, "sequence"), job.data.seq_len,
                       count_of(job.schedule.total_steps, "step"));
  return fmt::format("{}: {} x {} · {} = tensor {}{} x pipeline {} x data {} · {} x {} tokens a step · {}",
                     job.name, count_of(job.model.num_layers, "layer"), job.model.hidden_size,
                     count_of(p.world_size, "rank"), p.tensor,
                     p.context > 1 ? fmt::format(" x context {}", p.context) : "", p.pipeline, p.data,
                     count_of(job.batch.global_sequences, "sequence"), job.data.seq_len,
                     count_of(job.schedule.total_steps, "step"));
}

OrderedJson validate_result(const ParsedJob& parsed) {
  return {{"valid", true},
          {"hash", parsed.hash},
          {"warnings", parse_ordered_json(render_json(parsed.diagnostics))},
          {"spec", parse_ordered_json(parsed.resolved_json)},
          {"origins", parse_ordered_json(parsed.origins_json)}};
}

/// The job with the mesh that a launch here would choose. As it is where Slurm's nodes are to run it, or this
/// machine does not say on how many ranks: stderr says why.
std::optional<ParsedJob> with_mesh_here(ParsedJob parsed, JobArguments arguments, StartsAt place,
                                        const Context& context) {
  if (place == StartsAt::elsewhere) return parsed;
  try {
    const MeshChoosing choosing = choosing_here(parsed.job);
    return with_chosen_mesh(parsed, arguments, choosing, context);
  } catch (const Error& unknown) {
    if (unknown.code() != ErrorCode::kUsage) throw;
    if (!context.quiet()) fmt::print(stderr, "note: no mesh is chosen here: {}\n", unknown.what());
    return parsed;
  }
}

int validate(const ValidateOptions& options, const Context& context) {
  if (options.schema) {
    fmt::print("{}", job_schema());  // a document of another standard, with --json, too
    return kExitDone;
  }
  if (options.job.path.empty())
    throw Error(ErrorCode::kUsage, "which job spec? write `trainctl validate JOB`, or --schema");
  std::optional<ParsedJob> parsed = load_job(options.job, context);
  if (!parsed) return exit_status(ErrorCode::kSpec);
  const bool is_for_slurm =
      std::any_of(parsed->values.begin(), parsed->values.end(), [](const EffectiveValue& value) {
        return value.path.starts_with("launcher.slurm.") && value.origin != "default";
      });
  const StartsAt place = is_for_slurm ? StartsAt::elsewhere : StartsAt::here;
  parsed = with_mesh_here(std::move(*parsed), options.job, place, context);
  if (!parsed) return exit_status(ErrorCode::kSpec);
  if (const int status = check_start(*parsed, options.job, place, context); status != kExitDone)
    return status;
  if (context.json) {
    print_json("validate", validate_result(*parsed));
  } else if (options.resolved) {
    fmt::print("{}", parsed->resolved_json);
  } else if (options.show_origin) {
    print_rows(rows_of(*parsed), true);
  } else if (!context.quiet()) {
    fmt::print("{}\n", summary(parsed->job));
    if (const auto risk = risk_of(parsed->job.checkpoint)) fmt::print("{}\n", *risk);
    fmt::print("valid. next: {}\n", launch_command(options.job));
  }
  return kExitDone;
}

}  // namespace

void add_validate(CommandLine& app, Context& context) {
  auto options = std::make_shared<ValidateOptions>();
  CommandLine command = app.add_subcommand("validate", "check a job spec and the files it names; show the effective values");
  add_job_arguments(command, options->job);
  command.get_option("JOB").required(false);
  add_no_data_flag(command, options->job);
  command.add_flag("--schema", options->schema, "print the JSON Schema (draft-07) of job specs");
  command.add_flag("--show-origin", options->show_origin,
                    "print every effective value and where it comes from");
  command.add_flag("--resolved", options->resolved, "print the resolved spec as strict JSON");
  when_chosen(command, context, [options, &context] { return validate(*options, context); });
}

}  // namespace trainctl::cmd
