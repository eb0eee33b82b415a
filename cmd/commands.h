// What the commands of trainctl share. A command is one file of this folder with one function, `add_<name>`, that declares
// its subcommand and options and says what to run; program.cpp parses the line, runs it and returns its exit status.
//
// To add a command: write cmd/<name>.cpp, declare add_<name> below, and name it in the table of cmd/commands.cpp.
//
//   void add_stop(CommandLine& app, Context& context) {
//     auto options = std::make_shared<Options>();
//     CommandLine command = app.add_subcommand("stop", "save and stop a run");
//     command.add_option("RUN", options->run, "id, unique prefix, path or `latest`").required();
//     when_chosen(command, context, [options, &context] { return stop(*options, context); });
//   }
//
// Errors: a command throws Error (or returns an exit status itself); program.cpp turns it into one line on stderr and
// exit_status(code). `--json` is global: a command that prints results checks context.json and writes JSON to stdout.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cmd/command_line.h"
#include "runtime/spec/parse.h"

namespace trainctl::cmd {

/// Exit statuses that are no errors; the others come from exit_status(ErrorCode). Full table: `trainctl help exit-codes`.
inline constexpr int kExitDone = 0, kExitDifferences = 20;

/// Global flags, filled in before any command runs.
struct Context {
  bool only_errors = false;          ///< -q
  bool json = false;                 ///< --json: the result as JSON on stdout, nothing else there
  bool color_out = false;            ///< ANSI colours wanted on stdout
  bool color_err = false;            ///< ... on stderr
  std::string program;               ///< path of this binary, for starting ranks
  std::vector<std::string> arguments;///< the whole command line after the program, for the records of a run
  std::function<int()> action;       ///< set by when_chosen
  bool quiet() const { return only_errors; }
};

/// Makes `run` the action of the program if `command` is the subcommand on the line. Returns the exit status.
void when_chosen(CommandLine command, Context& context, std::function<int()> run);

/// JOB and -s/--set, shared by every command that reads a job spec.
struct JobArguments {
  std::string path;
  std::vector<std::string> overrides;
  bool no_data = false;              ///< --no-data: do not look whether the files of the job exist
};
void add_job_arguments(CommandLine command, JobArguments& arguments);
/// --no-data, for commands that need nothing but the spec.
void add_no_data_flag(CommandLine command, JobArguments& arguments);
/// Only -s/--set K=V, for commands whose JOB comes from elsewhere (resume).
void add_set_option(CommandLine command, std::vector<std::string>& overrides);

/// Reads and parses the spec with TRAINCTL_SET__* and --set applied. Prints all diagnostics (stderr, or stdout as JSON under
/// --json when there are errors). Nothing returned: the spec has errors and the command must return
/// exit_status(ErrorCode::kSpec). Throws Error(kUsage) if the file cannot be read.
std::optional<ParsedJob> load_job(const JobArguments& arguments, const Context& context);
/// Whether the files of the job exist. If not, prints one located error each (as load_job does) and the command must return
/// exit_status(ErrorCode::kData). Always true with --no-data.
bool files_exist(const ParsedJob& job, const JobArguments& arguments, const Context& context);
/// "" or one sentence on what a failure of this job would cost: everything, if it saves nothing on the way.
std::string risk_of(const JobSpec& job);
/// What load_job parses: the file's text, with TRAINCTL_SET__* and --set. Throws Error(kUsage) if the file cannot be read.
ParseInput job_input(const JobArguments& arguments);
/// `trainctl launch JOB -s ...` of the same job, quoted for a shell.
std::string launch_command(const JobArguments& arguments);
/// The same as load_job from text already at hand, e.g. the resolved spec of a run; `file` names it in diagnostics, and its
/// relative paths start in `folder` ("": in that of `file`).
std::optional<ParsedJob> load_job_text(const std::string& text, const std::string& file,
                                       const std::vector<std::string>& overrides, const Context& context,
                                       const std::string& folder = "");

/// Prints diagnostics on stderr, or on stdout as JSON under --json. Returns the exit status of a spec with errors.
int report_mistakes(const std::vector<Diagnostic>& mistakes, const Context& context);

/// One registered command.
struct Command {
  const char* name;
  void (*add)(CommandLine& app, Context& context);
};
/// Every command of this build, in the order of the help text.
std::span<const Command> commands();

/// The whole program but for main itself: parses, runs, maps every outcome to an exit status. For tests, too.
int run_program(int argc, const char* const* argv);

void add_launch(CommandLine& app, Context& context);
void add_resume(CommandLine& app, Context& context);
void add_stop(CommandLine& app, Context& context);
void add_status(CommandLine& app, Context& context);
void add_diagnose(CommandLine& app, Context& context);
void add_rank(CommandLine& app, Context& context);
void add_node(CommandLine& app, Context& context);
/// `trainctl remote HOST COMMAND...`, which mpirun calls with words of any form; nothing of the line is parsed.
int remote_shell(int argc, const char* const* argv);
void add_plan(CommandLine& app, Context& context);
void add_data(CommandLine& app, Context& context);
void add_sample(CommandLine& app, Context& context);
void add_validate(CommandLine& app, Context& context);
void add_explain(CommandLine& app, Context& context);
void add_init(CommandLine& app, Context& context);
void add_inspect_ckpt(CommandLine& app, Context& context);
void add_nodes(CommandLine& app, Context& context);
void add_doctor(CommandLine& app, Context& context);
void add_completion(CommandLine& app, Context& context);

}  // namespace trainctl::cmd
