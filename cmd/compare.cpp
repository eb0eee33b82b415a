// trainctl compare: two runs side by side, and the first step in which their bits differ.
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "cmd/watch.h"
#include "runtime/observe/terminal/run_comparison.h"

namespace trainctl::cmd {
namespace {

struct CompareOptions {
  std::string a, b, root = default_run_root();
};

const report::RunData& read(report::RunReader& reader, const RunDirectory& run) {
  const report::RunData& data =
      reader.read(supervisor_state(real_file_system(), run) != SupervisorState::none);
  for (const std::string& note : data.notes) fmt::print(stderr, "note: {}: {}\n", data.id, note);
  return data;
}

int compare(const CompareOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const RunDirectory of_a = find_run({options.a, options.root}).run,
                     of_b = find_run({options.b, options.root}).run;
  report::RunReader reader_a(fs, of_a, {.plan = false, .ranks = false}),
      reader_b(fs, of_b, {.plan = false, .ranks = false});
  const report::RunData &a = read(reader_a, of_a), &b = read(reader_b, of_b);
  const terminal::RunComparison comparison = terminal::compare_runs(a, b);
  const double now = real_clock().unix_s();
  if (context.json)
    print_json("compare", terminal::comparison_json(a, b, comparison, now));
  else
    fmt::print("{}",
               terminal::render_comparison(a, b, comparison, now,
                                           {.columns = terminal_room().columns, .color = context.color_out}));
  return comparison.identical() ? kExitDone : kExitDifferences;
}

}  // namespace

void add_compare(CommandLine& app, Context& context) {
  auto options = std::make_shared<CompareOptions>();
  CommandLine command = app.add_subcommand(
      "compare", "compare two runs and find the first step whose bits differ (exit 20; none: exit 0)");
  command.add_option("RUN", options->a, "id, unique beginning of one, path, or `latest`")
      .required()
      .type_name("");
  command
      .add_option(
          "OTHER", options->b,
          "the run to compare with; exit status 0: everything that both recorded has equal bits; 20: "
          "something differs, or there is nothing to compare")
      .required()
      .type_name("");
  command.add_option("--run-dir", options->root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
  when_chosen(command, context, [options, &context] { return compare(*options, context); });
}

}  // namespace trainctl::cmd
