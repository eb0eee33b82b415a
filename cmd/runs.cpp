#include "cmd/runs.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cmd/output.h"
#include "runtime/base/json.h"
#include "runtime/machine/process.h"

namespace trainctl::cmd {

void add_run_arguments(CommandLine command, RunArguments& arguments, bool required, const char* what) {
  arguments.root = default_run_root();
  command.add_option("RUN", arguments.name, what).required(required).type_name("");
  command.add_option("--run-dir", arguments.root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
}

std::string default_run_root() {
  const char* root = std::getenv("TRAINCTL_RUN_DIR");
  return root && *root ? root : "runs";
}

void set_run_folder(std::vector<std::string>& overrides, const std::string& run_dir) {
  const char* root = std::getenv("TRAINCTL_RUN_DIR");
  if (!run_dir.empty())
    overrides.push_back("observability.run_dir=" + run_dir);
  else if (root && *root)
    overrides.insert(overrides.begin(), std::string("observability.run_dir=") + root);
}

FoundRun find_run(const RunArguments& arguments) {
  return trainctl::find_run(real_file_system(), arguments.name, arguments.root);
}

std::string find_checkpoint(const RunArguments& arguments) {
  FileSystem& fs = real_file_system();
  if (fs.exists(arguments.name + "/COMMIT")) return arguments.name;
  const FoundRun found = find_run(arguments);
  std::string dir = found.run.file("ckpt");
  if (fs.exists(found.run.job()))
    if (const ParsedJob job = parse_job({.text = fs.read_text(found.run.job()), .file = found.run.job()}); job.ok())
      dir = found.run.checkpoints(job.job.checkpoint);
  const auto checkpoint = ckpt::open_latest(fs, dir, -1, [](const std::string& path, const std::string& why) {
    fmt::print(stderr, "skipped {}: {}\n", path, why);
  });
  if (!checkpoint)
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} holds no usable checkpoint yet; see trainctl status {}", dir, arguments.name));
  return checkpoint->path();
}

SupervisorState supervisor_state(FileSystem& fs, const RunDirectory& run) {
  const auto place = supervisor_place(fs, run);
  if (!place) return SupervisorState::none;
  return place->here && process_stopped(place->pid) ? SupervisorState::stopped : SupervisorState::alive;
}

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

TerminalConsole::Options console_options(const Context& context) {
  TerminalConsole::Options options;
  options.terminal = ::isatty(STDERR_FILENO);
  options.color = context.color_err;
  options.quiet = context.quiet();
  options.begun_unix_s = real_clock().unix_s();
  options.columns = [] {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? int(size.ws_col) : 0;
  };
  return options;
}

TimeLedger ledger_now(TimeReader& reader, const RunStatus& status, SupervisorState supervisor) try {
  reader.read();
  const bool goes_on = supervisor != SupervisorState::none && !status.ended();
  return ledger_of(reader.records(), goes_on ? real_clock().unix_s() : NAN);
} catch (const Error&) {
  return {};
}

std::string status_text(const RunStatus& status, SupervisorState supervisor, TimeReader& reader) {
  OrderedJson body = parse_ordered_json(status.to_json());
  body["supervisor"] = word_of(supervisor);
  body["time"] = ledger_json(ledger_now(reader, status, supervisor));
  return json_text("status", body, -1);
}

std::string status_text(const RunStatus& status, SupervisorState supervisor) {
  TimeReader reader(real_file_system(), RunDirectory{status.directory});
  return status_text(status, supervisor, reader);
}

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

int report_result(const RunResult& result, const Context& context) {
  if (context.json) fmt::print("{}", status_text(result.status, SupervisorState::none));
  std::fflush(stdout);
  TerminalConsole console(console_options(context));
  act(result.acts, console);
  return result.exit_code;
}

}  // namespace trainctl::cmd
