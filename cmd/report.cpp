// trainctl report: one HTML file that shows what a run was and is, or several runs side by side.
#include <filesystem>
#include <memory>
#include <vector>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/observe/report/page.h"
#include "runtime/observe/report/report_data.h"

namespace trainctl::cmd {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string root, out;
};

/// More curves in one picture cannot be told apart.
constexpr size_t kMostRuns = 16;

/// The folder of the one run, or else the current one.
std::string default_path(const std::vector<RunDirectory>& runs) {
  return runs.size() == 1 ? runs[0].file("report.html") : "report.html";
}

void write_page(const std::string& path, const std::string& page) {
  FileSystem& fs = real_file_system();
  if (fs.is_directory(path))
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is a folder; name a file in it: --out {}/report.html", path, path));
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!fs.is_directory(folder.string()))
    throw Error(ErrorCode::kUsage,
                fmt::format("there is no folder {} for the report; make it first", folder.string()));
  fs.replace_text(path, page);
}

int report(const ReportArguments& arguments, const Context& context) {
  FileSystem& fs = real_file_system();
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
    readers.push_back(std::make_unique<report::RunReader>(fs, run));
    read.push_back(&readers.back()->read(supervisor_state(fs, run) != SupervisorState::none));
    for (const std::string& note : read.back()->notes)
      fmt::print(stderr, "note: {}: {}\n", read.back()->id, note);
  }
  const nlohmann::ordered_json data = report::report_json(read, real_clock().unix_s());
  if (context.json) print_json("report", data, -1);
  if (context.json && arguments.out.empty()) return kExitDone;
  const std::string path = arguments.out.empty() ? default_path(runs) : arguments.out;
  const std::string page = report::page_html(data);
  write_page(path, page);
  if (!context.json && !context.quiet()) fmt::print("{} · {}\n", path, size_text(page.size()));
  return kExitDone;
}

}  // namespace

void add_report(CommandLine& app, Context& context) {
  auto arguments = std::make_shared<ReportArguments>();
  arguments->root = default_run_root();
  CommandLine command = app.add_subcommand("report", "an HTML page of a run, or of several side by side");
  command
      .add_option("RUN", arguments->runs,
                  "id, unique beginning of one, path, or `latest` (default); several are compared")
      .type_name("");
  command
      .add_option("-o,--out", arguments->out,
                  "the file (default: report.html in the run's folder; of several runs: here)")
      .type_name("FILE");
  command
      .add_option("--run-dir", arguments->root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
  when_chosen(command, context, [arguments, &context] { return report(*arguments, context); });
}

}  // namespace trainctl::cmd
