// What the commands on runs (launch, resume, stop, status, diagnose) share.
#pragma once
#include <functional>
#include <string>

#include "cmd/commands.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/supervise/loop/supervisor.h"
#include "runtime/observe/console.h"
#include "runtime/observe/status.h"

namespace trainctl::cmd {

/// RUN and where to look for it.
struct RunArguments {
  std::string name = "latest", root;
};
void add_run_arguments(CommandLine command, RunArguments& arguments, bool required);
FoundRun find_run(const RunArguments& arguments);
/// Where ids are looked for unless told: $TRAINCTL_RUN_DIR, else runs.
std::string default_run_root();

SupervisorState supervisor_state(FileSystem& fs, const RunDirectory& run);

/// This binary, by its full path: ranks are started with it.
std::string own_program();

/// The console of a supervisor on stderr.
TerminalConsole::Options console_options(const Context& context);

/// Runs `supervise` of `run` in the background and returns once ranks are up, or with its exit status if it ended before. No
/// thread may have been started.
int detach(const RunDirectory& run, const std::function<int()>& supervise);

/// From here on a reader of our output that goes away (a closed pipe) does not end us: the run directory keeps the record.
void outlive_readers();

/// What a supervised run ends with under --json, and its exit status.
int report_result(const RunResult& result, const Context& context);

}  // namespace trainctl::cmd
