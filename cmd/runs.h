// Functions that the commands on runs (launch, resume, stop, status, diagnose) share.
#pragma once
#include <functional>
#include <string>

#include "cmd/commands.h"
#include "runtime/observe/console.h"
#include "runtime/observe/status.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/time_reader.h"
#include "runtime/supervise/loop/supervisor.h"

namespace trainctl::cmd {

/// RUN, and the folder in which to search for it.
struct RunArguments {
  std::string name = "latest", root;
};
void add_run_arguments(CommandLine command, RunArguments& arguments, bool required,
                       const char* what = "id, unique beginning of one, path, or `latest`");
FoundRun find_run(const RunArguments& arguments);
/// The checkpoint that RUN|CKPT means: the newest usable one of a run, or the one named, which may lie
/// anywhere.
std::string find_checkpoint(const RunArguments& arguments);
/// The default folder of runs: $TRAINCTL_RUN_DIR, or "runs" if that is not set.
std::string default_run_root();

/// Sets observability.run_dir among the overrides of a job: `run_dir`, else the default folder of runs if it
/// is set. So all commands look in one place.
void set_run_folder(std::vector<std::string>& overrides, const std::string& run_dir);

SupervisorState supervisor_state(FileSystem& fs, const RunDirectory& run);

/// The ledger of a run with this status, until now; empty where its records cannot be read.
TimeLedger ledger_now(TimeReader& reader, const RunStatus& status, SupervisorState supervisor);
/// The status of a run as a result (cmd/output.h) on one line: status.json, whether a supervisor holds the
/// run, and what its time was spent on.
std::string status_text(const RunStatus& status, SupervisorState supervisor, TimeReader& reader);
std::string status_text(const RunStatus& status, SupervisorState supervisor);

/// The full path of this binary, with which ranks are started.
std::string own_program();

/// The options for a supervisor's console on stderr.
TerminalConsole::Options console_options(const Context& context);

/// Runs `supervise` in a background process. Returns when the ranks of `run` are up, or with the exit status
/// of `supervise` if it ends before. Call it before the first thread starts.
int detach(const RunDirectory& run, const std::function<int()>& supervise, const Context& context);

/// After this call, a closed stdout or stderr pipe does not end this process. The run directory keeps the
/// record.
void outlive_readers();

/// Ends a command that supervised a run: prints the result as JSON with --json, carries out result.acts, and
/// returns the exit status.
int report_result(const RunResult& result, const Context& context);

}  // namespace trainctl::cmd
