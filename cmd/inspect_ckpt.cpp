// trainctl inspect-ckpt: what a checkpoint holds, whether every byte of it is good, and how it differs from another.
#include <cstdio>
#include <memory>

#include "cmd/commands.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/observe/checkpoint_report.h"

namespace trainctl::cmd {
namespace {

/// A path as it is; anything else as the id, unique prefix or `latest` of a run.
std::string path_of(const std::string& name, const std::string& root) {
  if (real_file_system().exists(name)) return name;
  return find_run(RunArguments{name, root}).run.path;
}

int inspect(CheckpointReportOptions options, const std::string& root, const Context& context) {
  options.json = context.json;
  options.path = path_of(options.path, root);
  if (!options.other.empty()) options.other = path_of(options.other, root);
  const CheckpointReport report = report_checkpoint(real_file_system(), real_clock(), options);
  if (!report.notes.empty()) fmt::print(stderr, "{}", report.notes);
  fmt::print("{}", report.text);
  if (report.damaged) return exit_status(ErrorCode::kCheckpoint);
  return report.different ? kExitDifferences : kExitDone;
}

}  // namespace

void add_inspect_ckpt(CommandLine& app, Context& context) {
  auto options = std::make_shared<CheckpointReportOptions>();
  auto root = std::make_shared<std::string>(default_run_root());
  CommandLine command = app.add_subcommand("inspect-ckpt", "show, verify or compare checkpoints");
  command
      .add_option("PATH", options->path,
                   "a step folder, a run directory, its ckpt folder (newest checkpoint), a run id or `latest`")
      .required()
      .type_name("");
  command.add_flag("--tensors", options->tensors, "list every tensor");
  command.add_flag("--stats", options->stats,
                    "list every tensor with mean, std, largest value, NaN, infinite and zero values");
  command.add_flag("--verify", options->verify,
                    "re-read every byte and check every hash; exit status 7 on damage");
  command
      .add_option("--diff", options->other,
                   "compare with this checkpoint: exit status 0 if identical, 20 if not")
      .type_name("PATH");
  command.add_option("--run-dir", *root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)").type_name("DIR");
  when_chosen(command, context, [options, root, &context] { return inspect(*options, *root, context); });
}

}  // namespace trainctl::cmd
