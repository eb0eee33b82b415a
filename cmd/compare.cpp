// trainctl compare: runs side by side, and the first step in which their bits differ from those of the first.
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "cmd/watch.h"
#include "runtime/observe/terminal/run_comparison.h"

namespace trainctl::cmd {
namespace {

struct CompareOptions {
  std::string first, root = default_run_root();
  std::vector<std::string> others;
};

int compare(const CompareOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  std::vector<std::string> names{options.first};
  names.insert(names.end(), options.others.begin(), options.others.end());
  std::vector<std::unique_ptr<report::RunReader>> readers;
  std::vector<const report::RunData*> runs;
  for (const std::string& name : names) {
    const RunDirectory run = find_run({name, options.root}).run;
    readers.push_back(std::make_unique<report::RunReader>(
        fs, run, report::RunReader::Parts{.plan = false, .ranks = false}));
    runs.push_back(&readers.back()->read(supervisor_state(fs, run) != SupervisorState::none));
    for (const std::string& note : runs.back()->notes)
      fmt::print(stderr, "note: {}: {}\n", runs.back()->id, note);
  }
  const double now = real_clock().unix_s();
  bool identical = true;
  for (size_t i = 1; i < runs.size(); ++i) {
    const terminal::RunComparison pair = terminal::compare_runs(*runs[0], *runs[i]);
    identical &= pair.identical();
    if (context.json)
      print_json("compare", terminal::comparison_json(*runs[0], *runs[i], pair, now),
                 runs.size() > 2 ? -1 : 2);
  }
  if (!context.json)
    fmt::print("{}", terminal::render_comparison(
                         runs, now, {.columns = terminal_room().columns, .color = context.color_out}));
  return identical ? kExitDone : kExitDifferences;
}

}  // namespace

void add_compare(CommandLine& app, Context& context) {
  auto options = std::make_shared<CompareOptions>();
  CommandLine command = app.add_subcommand(
      "compare", "compare runs and find the first step whose bits differ (exit 20; none: exit 0)");
  command.add_option("RUN", options->first, "id, unique beginning of one, path, or `latest`")
      .required()
      .type_name("");
  command
      .add_option("OTHER", options->others,
                  "the runs to compare with it; exit status 0: everything that two of them recorded has "
                  "equal bits; 20: "
                  "something differs, or there is nothing to compare; --json: a line for each of several")
      .required()
      .type_name("");
  command.add_option("--run-dir", options->root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
  when_chosen(command, context, [options, &context] { return compare(*options, context); });
}

}  // namespace trainctl::cmd
