// trainctl rm and prune: remove runs that have ended, with their checkpoints.
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/run/record/known_status.h"
#include "runtime/supervise/start/start.h"
#include "runtime/supervise/start/submit.h"

namespace trainctl::cmd {
namespace {

struct RemoveOptions {
  std::vector<std::string> runs;
  std::string root = default_run_root();
  bool yes = false, dry_run = false;
};

/// A run that may be removed.
struct Removal {
  RunDirectory run;
  uint64_t bytes = 0;
  size_t checkpoints = 0;
  std::string stays;  ///< the folder of its checkpoints if that lies elsewhere; "": it goes, too
};

/// What is being removed is no run any more.
std::string hidden_path(const RunDirectory& run) {
  const std::filesystem::path path = run.path;
  return (path.parent_path() / (".removing-" + path.filename().string())).string();
}

uint64_t bytes_below(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code gone;  // a file may be removed meanwhile
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, gone))
    if (entry.is_regular_file(gone) && !entry.is_symlink(gone)) bytes += entry.file_size(gone);
  return bytes;
}

/// A run is recorded as ended a moment before its supervisor is gone.
void await_end(FileSystem& fs, const RunDirectory& run) {
  constexpr double kLongestS = 10, kPauseS = 0.05;
  Clock& clock = real_clock();
  const double until_s = clock.monotonic_s() + kLongestS;
  while (supervisor_state(fs, run) != SupervisorState::none && clock.monotonic_s() < until_s) {
    const auto status = try_read_status(fs, run.status()).status;
    if (!status || !status->ended()) return;
    clock.sleep_s(kPauseS);
  }
}

/// Why the run must stay now, one sentence.
Problem in_use(FileSystem& fs, const RunDirectory& run) {
  const std::string id = folder_name(run);
  await_end(fs, run);
  if (supervisor_state(fs, run) != SupervisorState::none)
    return Problem(fmt::format("run {} is running; stop it first: trainctl stop {}", id, id));
  if (const auto record = read_slurm_record(fs, run))
    if (const auto lines = queue_lines(*record); !lines.empty())
      return Problem(fmt::format("run {} is in Slurm's queue ({}); cancel that first: trainctl stop {}", id,
                                 lines.front(), id));
  return Problem::none();
}

Removal removal_of(FileSystem& fs, const RunDirectory& run) {
  Removal removal{
      .run = run, .bytes = bytes_below(run.path), .checkpoints = checkpoint_steps(fs, run).size()};
  const std::string checkpoints = checkpoint_folder(fs, run);
  if (!checkpoints.starts_with(run.path + "/") && removal.checkpoints > 0) removal.stays = checkpoints;
  return removal;
}

/// Named in full: a unique beginning is enough to look at a run, not to remove it.
RunDirectory named_run(FileSystem& fs, const std::string& name, const std::string& root) {
  const FoundRun found = find_run(fs, name, root);
  if (found.step)
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is a checkpoint; rm removes whole runs, e.g. {}", name, found.run.path));
  if (name != folder_name(found.run) && absolute_path(name) != found.run.path)
    throw Error(ErrorCode::kUsage,
                fmt::format("which run is removed must be named in full: {}", folder_name(found.run)));
  return found.run;
}

void remove(FileSystem& fs, const RunDirectory& run) {
  const std::string hidden = hidden_path(run);
  {
    const RunLock lock = lock_or_refuse(fs, run, folder_name(run));
    fs.rename(run.path, hidden);
  }
  if (fs.exists(hidden + "/run.json")) fs.remove_file(hidden + "/run.json");
  fs.remove_tree(hidden);
}

std::string text_of(const Removal& removal) {
  return fmt::format("{}  {} · {}{}", folder_name(removal.run), size_text(removal.bytes),
                     count_of(int64_t(removal.checkpoints), "checkpoint"),
                     removal.stays.empty() ? "" : fmt::format(" that stay in {}", removal.stays));
}

/// Whether a person agrees. Error(kUsage): there is no terminal.
bool is_agreed(const std::vector<Removal>& removals) {
  for (const Removal& removal : removals) fmt::print(stderr, "{}\n", text_of(removal));
  if (!::isatty(STDIN_FILENO) || !::isatty(STDERR_FILENO))
    throw Error(ErrorCode::kUsage, "nothing was removed: there is no terminal to ask in; add --yes");
  fmt::print(stderr, "remove {} for good? [y/N] ", count_of(int64_t(removals.size()), "run"));
  std::string answer;
  return std::getline(std::cin, answer) && (answer == "y" || answer == "yes");
}

int remove_all(const std::vector<Removal>& removals, const RemoveOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const bool does = !options.dry_run && !removals.empty() && (options.yes || is_agreed(removals));
  OrderedJson rows = OrderedJson::array();
  uint64_t bytes = 0;
  for (const Removal& removal : removals) {
    if (does) remove(fs, removal.run);
    bytes += removal.bytes;
    rows.push_back(OrderedJson{{"run_id", folder_name(removal.run)},
                               {"directory", removal.run.path},
                               {"bytes", removal.bytes},
                               {"checkpoints", int64_t(removal.checkpoints)}});
  }
  if (context.json) {
    print_json("removed", {{"removed", does}, {"runs", rows}});
  } else if (!context.quiet()) {
    if (options.dry_run)
      for (const Removal& removal : removals) fmt::print("{}\n", text_of(removal));
    fmt::print("{} {} · {}\n", does ? "removed" : "nothing was removed of",
               count_of(int64_t(removals.size()), "run"), size_text(bytes));
  }
  return kExitDone;
}

int rm(const RemoveOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  std::vector<Removal> removals;
  for (const std::string& name : options.runs) {
    const RunDirectory run = named_run(fs, name, options.root);
    if (const Problem problem = in_use(fs, run); problem.exists())
      throw Error(ErrorCode::kUsage, problem.text());
    removals.push_back(removal_of(fs, run));
  }
  return remove_all(removals, options, context);
}

/// Tries that came to nothing: neither running nor waiting, and without a checkpoint.
int prune(const RemoveOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const std::string root = absolute_path(options.root);
  std::vector<Removal> removals;
  for (const std::string& id : run_ids(fs, root)) {
    const RunDirectory run{root + "/" + id};
    if (in_use(fs, run).exists()) continue;
    if (Removal removal = removal_of(fs, run); removal.checkpoints == 0)
      removals.push_back(std::move(removal));
  }
  if (fs.is_directory(root) && !options.dry_run)
    for (const std::string& name : fs.list(root))
      if (name.starts_with(".removing-")) fs.remove_tree(root + "/" + name);  // of one that was killed
  return remove_all(removals, options, context);
}

void add_options(CommandLine command, RemoveOptions& options) {
  command.add_flag("-y,--yes", options.yes, "do not ask");
  command.add_flag("--dry-run", options.dry_run, "say what would be removed, and remove nothing");
  command.add_option("--run-dir", options.root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
}

}  // namespace

void add_rm(CommandLine& app, Context& context) {
  auto options = std::make_shared<RemoveOptions>();
  CommandLine command = app.add_subcommand("rm", "remove runs that have ended, with their checkpoints");
  command.add_option("RUN", options->runs, "ids in full, or paths").required().type_name("");
  add_options(command, *options);
  when_chosen(command, context, [options, &context] { return rm(*options, context); });
}

void add_prune(CommandLine& app, Context& context) {
  auto options = std::make_shared<RemoveOptions>();
  CommandLine command =
      app.add_subcommand("prune", "remove runs that have ended and saved no checkpoint: tries that failed");
  add_options(command, *options);
  when_chosen(command, context, [options, &context] { return prune(*options, context); });
}

}  // namespace trainctl::cmd
