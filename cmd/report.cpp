// trainctl report: one HTML file that shows what a run was and is, or several runs side by side.
#include <filesystem>
#include <memory>
#include <vector>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/base/units.h"
#include "runtime/observe/report/page.h"
#include "runtime/observe/report/report_data.h"
#include "runtime/observe/report/steps_csv.h"

namespace trainctl::cmd {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string root, out, csv;
};

/// More curves in one picture cannot be told apart.
constexpr size_t kMostRuns = 16;

/// The folder of the one run, or else the current one.
std::string default_report_path(const std::vector<RunDirectory>& runs) {
  return runs.size() == 1 ? runs[0].file("report.html") : "report.html";
}

void write_file(const std::string& path, const std::string& text) {
  FileSystem& fs = real_file_system();
  if (fs.is_directory(path))
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is a folder; name a file in it", path));
  const std::filesystem::path folder = std::filesystem::path(absolute_path(path)).parent_path();
  if (!fs.is_directory(folder.string()))
    throw Error(ErrorCode::kUsage,
                fmt::format("there is no folder {}; make it first", folder.string()));
  fs.replace_text(path, text);
}

int report(const ReportArguments& arguments, const Context& context) {
  FileSystem& fs = real_file_system();
  if (context.json && arguments.csv == "-")
    throw Error(ErrorCode::kUsage, "stdout cannot be JSON and CSV at once; give --csv a file");
  std::vector<RunDirectory> runs;
  for (const std::string& name : arguments.runs) runs.push_back(find_run({name, arguments.root}).run);
  if (runs.empty()) runs.push_back(find_run({"latest", arguments.root}).run);
  if (runs.size() > kMostRuns)
    throw Error(ErrorCode::kUsage,
                fmt::format("{} runs in one report are too many to tell apart; name at most {}", runs.size(),
                            kMostRuns));
  std::vector<std::unique_ptr<report::RunReader>> readers;
  std::vector<const report::RunData*> read;
  for (const RunDirectory& run : runs) {
    const bool only_csv = !arguments.csv.empty() && arguments.out.empty() && !context.json;
    readers.push_back(std::make_unique<report::RunReader>(
        fs, run, report::RunReader::Parts{.plan = !only_csv, .ranks = !only_csv}));
    read.push_back(&readers.back()->read(supervisor_state(fs, run) != SupervisorState::none));
    for (const std::string& note : read.back()->notes)
      fmt::print(stderr, "note: {}: {}\n", read.back()->id, note);
  }
  if (!arguments.csv.empty()) {
    if (arguments.csv == "-")
      fmt::print("{}", report::steps_csv(read));
    else
      write_file(arguments.csv, report::steps_csv(read));
    if (arguments.out.empty() && !context.json) return kExitDone;
  }
  const OrderedJson data = report::report_json(read, real_clock().unix_s());
  if (context.json) print_json("report", data, -1);
  if (context.json && arguments.out.empty()) return kExitDone;
  const std::string path = arguments.out.empty() ? default_report_path(runs) : arguments.out;
  const std::string page = report::page_html(data);
  write_file(path, page);
  if (!context.json && !context.quiet()) fmt::print("{} · {}\n", path, size_text(page.size()));
  return kExitDone;
}

}  // namespace

void add_report(CommandLine& app, Context& context) {
  auto arguments = std::make_shared<ReportArguments>();
  arguments->root = default_run_root();
  CommandLine command = app.add_subcommand("report", "write an HTML page about a run, or about several "
                                                     "side by side");
  command
      .add_option("RUN", arguments->runs,
                  "id, unique beginning of one, path, or `latest` (default); several are compared")
      .type_name("");
  command
      .add_option("-o,--out", arguments->out,
                  "the file (default: report.html in the folder of the run; for several runs: in this "
                  "folder)")
      .type_name("FILE");
  command
      .add_option("--csv", arguments->csv,
                  "write the steps as CSV to this file, - for stdout; the page is written only with --out")
      .type_name("FILE");
  command
      .add_option("--run-dir", arguments->root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
  when_chosen(command, context, [arguments, &context] { return report(*arguments, context); });
}

}  // namespace trainctl::cmd
