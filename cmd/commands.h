// Declarations that all commands of trainctl share. A command is one file of this folder with one function
// `add_<name>`. The function declares the subcommand and its options and sets the function to run.
// program.cpp parses the line, runs that function and returns its exit status.
//
// To add a command: write cmd/<name>.cpp, declare add_<name> below, and name it in the table of
// cmd/commands.cpp.
//
//   void add_stop(CommandLine& app, Context& context) {
//     auto options = std::make_shared<Options>();
//     CommandLine command = app.add_subcommand("stop", "save and stop a run");
//     command.add_option("RUN", options->run, "id, unique prefix, path or `latest`").required();
//     when_chosen(command, context, [options, &context] { return stop(*options, context); });
//   }
//
// Errors: a command throws Error or returns an exit status. For an Error, program.cpp prints one line on
// stderr and exits with exit_status(code). `--json` is global: a command that prints results checks
// context.json and prints a result (cmd/output.h).
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cmd/command_line.h"
#include "runtime/spec/parse.h"
#include "runtime/supervise/start/start_problems.h"

namespace trainctl::cmd {

/// Exit statuses that are not errors. The others come from exit_status(ErrorCode). The full table: `trainctl
/// help exit-codes`.
inline constexpr int kExitDone = 0, kExitDifferences = 20;

/// That table, as text.
std::string exit_codes();

/// Global flags, filled in before any command runs.
struct Context {
  bool only_errors = false;          ///< -q
  bool json = false;                 ///< --json: stdout has the result as JSON and nothing else
  bool color_out = false;            ///< use ANSI colours on stdout
  bool color_err = false;            ///< use ANSI colours on stderr
  std::string program;               ///< path of this binary, for starting ranks
  std::vector<std::string> arguments;///< the command line without the program, for the records of a run
  std::function<int()> action;       ///< set by when_chosen
  bool quiet() const { return only_errors; }
};

/// Makes `run` the action of the program if the line names `command`. `run` returns the exit status.
void when_chosen(CommandLine command, Context& context, std::function<int()> run);

/// JOB and -s/--set, shared by every command that reads a job spec.
struct JobArguments {
  std::string path;
  std::vector<std::string> overrides;
  bool no_data = false;              ///< --no-data: do not check whether the files of the job exist
};
void add_job_arguments(CommandLine command, JobArguments& arguments);
/// Adds --no-data, for commands that need only the spec.
void add_no_data_flag(CommandLine command, JobArguments& arguments);
/// Adds only -s/--set K=V, for commands that have no JOB argument (resume).
void add_set_option(CommandLine command, std::vector<std::string>& overrides);

/// Reads and parses the spec with TRAINCTL_SET__* and --set applied. Prints all diagnostics on stderr and, if
/// there are errors and --json is given, also as a result on stdout. Returns nullopt if the spec has errors;
/// then the command must return exit_status(ErrorCode::kSpec). Throws Error(kUsage) if the file cannot be
/// read.
std::optional<ParsedJob> load_job(const JobArguments& arguments, const Context& context);
/// Whether the files of the job exist. If not, prints one error for each with its place, as load_job does;
/// then the command must return exit_status(ErrorCode::kData). Always true with --no-data.
bool files_exist(const ParsedJob& job, const JobArguments& arguments, const Context& context);
/// As files_exist, and that nothing around the job keeps it from starting. Returns the exit status; kExitDone:
/// it may start.
int check_start(const ParsedJob& job, const JobArguments& arguments, StartsAt place, const Context& context);
/// One sentence if a failure would lose all work of a job with this spec because it saves no checkpoints
/// before the end; nullopt if not.
std::optional<std::string> risk_of(const CheckpointSpec& checkpoint);
/// The input of load_job's parser: the file's text, TRAINCTL_SET__* and --set. Throws Error(kUsage) if the
/// file cannot be read.
ParseInput job_input(const JobArguments& arguments);
/// The command `trainctl launch JOB -s ...` for the same job, quoted for a shell.
std::string launch_command(const JobArguments& arguments);
/// Like load_job, but parses `text`, for example the resolved spec of a run. `file`: its name in diagnostics.
/// Relative paths are relative to `folder`; "": to the folder of `file`.
std::optional<ParsedJob> load_job_text(const std::string& text, const std::string& file,
                                       const std::vector<std::string>& overrides, const Context& context,
                                       const std::string& folder = "");

/// Prints diagnostics on stderr, with --json also as a result on stdout. Returns
/// exit_status(ErrorCode::kSpec).
int report_mistakes(const std::vector<Diagnostic>& mistakes, const Context& context);

/// One registered command.
struct Command {
  const char* name;
  void (*add)(CommandLine& app, Context& context);
};
/// Every command of this build, in the order of the help text.
std::span<const Command> commands();

/// The whole program except main: parses the line, runs the command, maps every outcome to an exit status.
/// Tests call it.
int run_program(int argc, const char* const* argv);

void add_launch(CommandLine& app, Context& context);
void add_resume(CommandLine& app, Context& context);
void add_manifest(CommandLine& app, Context& context);
void add_stop(CommandLine& app, Context& context);
void add_list(CommandLine& app, Context& context);
void add_rm(CommandLine& app, Context& context);
void add_prune(CommandLine& app, Context& context);
void add_status(CommandLine& app, Context& context);
void add_top(CommandLine& app, Context& context);
void add_logs(CommandLine& app, Context& context);
void add_diagnose(CommandLine& app, Context& context);
void add_report(CommandLine& app, Context& context);
void add_compare(CommandLine& app, Context& context);
void add_verify(CommandLine& app, Context& context);
void add_trace(CommandLine& app, Context& context);
void add_rank(CommandLine& app, Context& context);
void add_node(CommandLine& app, Context& context);
/// `trainctl remote HOST COMMAND...`, which mpirun calls. Does not parse options, because the words may have
/// any form.
int remote_shell(int argc, const char* const* argv);
void add_plan(CommandLine& app, Context& context);
void add_simulate(CommandLine& app, Context& context);
void add_data(CommandLine& app, Context& context);
void add_sample(CommandLine& app, Context& context);
void add_eval(CommandLine& app, Context& context);
void add_export(CommandLine& app, Context& context);
void add_import(CommandLine& app, Context& context);
void add_validate(CommandLine& app, Context& context);
void add_config(CommandLine& app, Context& context);
void add_explain(CommandLine& app, Context& context);
void add_init(CommandLine& app, Context& context);
void add_inspect_ckpt(CommandLine& app, Context& context);
void add_nodes(CommandLine& app, Context& context);
void add_doctor(CommandLine& app, Context& context);
void add_completion(CommandLine& app, Context& context);
void add_man(CommandLine& app, Context& context);
void add_help(CommandLine& app, Context& context);

}  // namespace trainctl::cmd
