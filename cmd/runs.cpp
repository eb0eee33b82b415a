#include "cmd/runs.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "runtime/machine/process.h"

namespace trainctl::cmd {

void add_run_arguments(CommandLine command, RunArguments& arguments, bool required) {
  arguments.root = default_run_root();
  command.add_option("RUN", arguments.name, "id, unique beginning of one, path, or `latest`")
      .required(required)
      .type_name("");
  command.add_option("--run-dir", arguments.root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
}

std::string default_run_root() {
  const char* root = std::getenv("TRAINCTL_RUN_DIR");
  return root && *root ? root : "runs";
}

FoundRun find_run(const RunArguments& arguments) {
  return trainctl::find_run(real_file_system(), arguments.name, arguments.root);
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
  options.columns = [] {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? int(size.ws_col) : 0;
  };
  return options;
}

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

int report_result(const RunResult& result, const Context& context) {
  if (context.json) std::puts(result.status.to_json().c_str());
  std::fflush(stdout);
  TerminalConsole console(console_options(context));
  act(result.acts, console);
  return result.exit_code;
}

}  // namespace trainctl::cmd
