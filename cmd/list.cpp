// trainctl list: the runs of a folder, newest first.
#include <filesystem>
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "cmd/watch.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/observe/terminal/run_list.h"

namespace trainctl::cmd {
namespace {

struct ListOptions {
  std::string root = default_run_root();
  int most = 0;
};

int list(const ListOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const std::string root = absolute_path(options.root);
  std::vector<terminal::ListedRun> runs = terminal::list_runs(
      fs, root, [&](const RunDirectory& run) { return supervisor_state(fs, run) != SupervisorState::none; });
  const size_t all = runs.size();
  if (options.most > 0 && all > size_t(options.most)) runs.resize(size_t(options.most));
  for (const terminal::ListedRun& run : runs)
    if (!run.note.empty()) fmt::print(stderr, "note: {}: {}\n", run.id, run.note);
  if (context.json) {
    print_json("list", {{"folder", root}, {"count", all}, {"runs", run_list_json(runs)}});
    return kExitDone;
  }
  if (runs.empty()) {
    fmt::print("no runs in {}. next: trainctl launch JOB, or name another folder with --run-dir\n", root);
    return kExitDone;
  }
  fmt::print("{}", render_run_list(runs, real_clock().unix_s(), terminal_room().columns, context.color_out));
  if (runs.size() < all) fmt::print("and {} older\n", count_of(int64_t(all - runs.size()), "run"));
  return kExitDone;
}

}  // namespace

void add_list(CommandLine& app, Context& context) {
  auto options = std::make_shared<ListOptions>();
  CommandLine command = app.add_subcommand("list", "list the runs of a folder, newest first");
  command.add_option("-n,--most", options->most,
      "list at most N runs").range(1, 1 << 20).type_name("N");
  command.add_option("--run-dir", options->root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
  when_chosen(command, context, [options, &context] { return list(*options, context); });
}

}  // namespace trainctl::cmd
