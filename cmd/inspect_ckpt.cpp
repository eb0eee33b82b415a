// trainctl inspect-ckpt: shows a checkpoint, verifies every byte of it, compares it with another,
// repairs it and copies it.
#include <cstdio>
#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/observe/checkpoint_repair.h"
#include "runtime/observe/checkpoint_report.h"

namespace trainctl::cmd {
namespace {

/// A path, or the id, unique prefix or `latest` of a run.
std::string path_of(const std::string& name, const std::string& root) {
  if (name.starts_with("s3://") || real_file_system().exists(name)) return name;
  return find_run(RunArguments{name, root}).run.path;
}

int inspect_checkpoint(CheckpointReportOptions options, const std::string& root, const Context& context) {
  options.json = context.json;
  options.path = path_of(options.path, root);
  if (!options.other.empty()) options.other = path_of(options.other, root);
  const CheckpointReport report = report_checkpoint(real_file_system(), real_clock(), options);
  if (!report.notes.empty()) fmt::print(stderr, "{}", report.notes);
  print_result("checkpoint", report.text, context);
  if (report.damaged) return exit_status(ErrorCode::kCheckpoint);
  return report.different ? kExitDifferences : kExitDone;
}

/// What the command line asks for besides a report.
struct Changes {
  bool repair = false;
  CheckpointRepairOptions repair_options;
  std::string copy_to;
};

int change(const Changes& changes, const std::string& given, const std::string& root,
           const Context& context) {
  const std::string path = path_of(given, root);
  CheckpointOutcome outcome;
  if (changes.repair) {
    CheckpointRepairOptions options = changes.repair_options;
    options.path = path;
    options.json = context.json;
    for (std::string& from : options.from) from = path_of(from, root);
    outcome = repair_checkpoint(real_file_system(), real_clock(), options);
  } else {
    outcome = copy_checkpoint(real_file_system(), real_clock(),
                              {.path = path, .to = changes.copy_to, .json = context.json});
  }
  print_result(changes.repair ? "checkpoint-repair" : "checkpoint-copy", outcome.text, context);
  return outcome.damaged ? exit_status(ErrorCode::kCheckpoint) : kExitDone;
}

/// --repair and --copy-to, with what belongs to them.
void add_changes(CommandLine& command, Changes& changes) {
  auto repair = command.add_flag(
      "--repair", changes.repair,
      "rewrite damaged files from good copies of their chunks, found in --from, then in the checkpoints "
      "next to it; if one is missing, nothing is written and the exit status is 7");
  command
      .add_option("--from", changes.repair_options.from, "look for good copies here first; may be repeated")
      .repeatable()
      .needs(repair)
      .type_name("PATH");
  command.add_flag("--dry-run", changes.repair_options.only_look,
      "only report what would be repaired")
      .needs(repair);
  auto copy = command.add_option(
      "--copy-to", changes.copy_to,
      "copy the checkpoint into this folder of checkpoints, or to s3://bucket/prefix (PATH may be one too); "
      "every byte is checked");
  copy.type_name("PLACE").excludes(repair);
  for (const char* report : {"--tensors", "--stats", "--verify", "--diff"}) {
    repair.excludes(command.get_option(report));
    copy.excludes(command.get_option(report));
  }
}

}  // namespace

void add_inspect_ckpt(CommandLine& app, Context& context) {
  auto options = std::make_shared<CheckpointReportOptions>();
  auto changes = std::make_shared<Changes>();
  auto root = std::make_shared<std::string>(default_run_root());
  CommandLine command =
      app.add_subcommand("inspect-ckpt", "show, verify, compare, repair or copy checkpoints");
  command
      .add_option("PATH", options->path,
                  "a step folder, a run directory, its ckpt folder or s3://bucket/prefix (newest "
                  "checkpoint), "
                  "a run id or `latest`")
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
  add_changes(command, *changes);
  when_chosen(command, context, [options, changes, root, &context] {
    if (changes->repair || !changes->copy_to.empty()) return change(*changes, options->path, *root, context);
    return inspect_checkpoint(*options, *root, context);
  });
}

}  // namespace trainctl::cmd
