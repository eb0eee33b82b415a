#include "cmd/commands.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/exchange/model_config.h"
#include "runtime/machine/mpirun.h"
#include "runtime/supervise/preflight/job_files.h"
#include "runtime/supervise/start/start.h"

extern char** environ;

namespace trainctl::cmd {

namespace {

// The commands of this build, in the order of the help text.
constexpr Command kCommands[] = {
    {"launch", add_launch},
    {"resume", add_resume},
    {"manifest", add_manifest},
    {"stop", add_stop},
    {"list", add_list},
    {"rm", add_rm},
    {"prune", add_prune},
    {"status", add_status},
    {"top", add_top},
    {"logs", add_logs},
    {"diagnose", add_diagnose},
    {"report", add_report},
    {"compare", add_compare},
    {"verify", add_verify},
    {"trace", add_trace},
    {"rank", add_rank},
    {"node", add_node},
    {"plan", add_plan},
    {"simulate", add_simulate},
    {"data", add_data},
    {"sample", add_sample},
    {"eval", add_eval},
    {"validate", add_validate},
    {"config", add_config},
    {"explain", add_explain},
    {"init", add_init},
    {"inspect-ckpt", add_inspect_ckpt},
    {"export", add_export},
    {"import", add_import},
    {"nodes", add_nodes},
    {"doctor", add_doctor},
    {"completion", add_completion},
    {"man", add_man},
};

std::vector<std::pair<std::string, std::string>> spec_environment() {
  std::vector<std::pair<std::string, std::string>> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (text.rfind("TRAINCTL_SET__", 0) == 0 && equals != std::string::npos)
      result.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

/// Errors also with --quiet; on stdout only if the command ends with them. `code`: what errors among them
/// mean.
void print_diagnostics(const std::vector<Diagnostic>& diagnostics, ErrorCode code, const Context& context) {
  if (diagnostics.empty()) return;
  const auto errors = std::count_if(diagnostics.begin(), diagnostics.end(),
                                    [](const Diagnostic& d) { return d.is_error(); });
  if (!context.quiet() || errors > 0) fmt::print(stderr, "{}", render(diagnostics, context.color_err));
  if (!context.json || errors == 0) return;
  const auto first = std::find_if(diagnostics.begin(), diagnostics.end(),
                                  [](const Diagnostic& d) { return d.is_error(); });
  print_error_json(code,
                   errors == 1 ? first->message
                               : fmt::format("{}; the first: {}", count_of(errors, "error"), first->message),
                   diagnostics);
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

void when_chosen(CommandLine command, Context& context, std::function<int()> run) {
  command.when_named([&context, run = std::move(run)] { context.action = run; });
}

void add_no_data_flag(CommandLine command, JobArguments& arguments) {
  command.add_flag("--no-data", arguments.no_data,
                   "do not look at the job's files and hosts and at this "
                   "machine, e.g. on a login node");
}

void add_set_option(CommandLine command, std::vector<std::string>& overrides) {
  command.add_option("-s,--set", overrides, "override one field of the spec, PATH=VALUE; may be repeated")
      .repeatable()
      .type_name("PATH=VALUE");
}

void add_job_arguments(CommandLine command, JobArguments& arguments) {
  command.add_option("JOB", arguments.path, "job spec (JSON, // comments allowed)")
      .required()
      .type_name("");
  add_set_option(command, arguments.overrides);
}

std::optional<ParsedJob> load_job_text(const std::string& text, const std::string& file,
                                       const std::vector<std::string>& overrides, const Context& context,
                                       const std::string& folder) {
  ParsedJob parsed = parse_job(
      {.text = text, .file = file, .folder = folder, .overrides = overrides, .environment = spec_environment()});
  print_diagnostics(parsed.diagnostics, ErrorCode::kSpec, context);
  if (!parsed.ok()) return std::nullopt;
  return parsed;
}

bool files_exist(const ParsedJob& job, const JobArguments& arguments, const Context& context) {
  if (arguments.no_data) return true;
  const std::vector<Diagnostic> missing = missing_files(job, real_file_system());
  print_diagnostics(missing, ErrorCode::kData, context);
  return missing.empty();
}

/// Says where the job is not the model of the config.json beside its weights, which alone do not say what is
/// computed from them.
void note_other_model(const ModelSpec& model, const Context& context) {
  const std::string file = model.init.from + "/config.json";
  if (context.json || context.quiet() || model.init.from.empty() || !real_file_system().exists(file)) return;
  try {
    const Json config = try_parse_json(real_file_system().read_text(file));
    if (config.is_discarded()) throw Error(ErrorCode::kData, file + " is not JSON");
    std::string differences;
    for (const ModelDifference& d : model_differences(model, read_model_config(config, file).model))
      differences += fmt::format("{}{} is {} there and {} here", differences.empty() ? "" : ", ", d.field,
                                 d.there, d.here);
    if (!differences.empty())
      fmt::print(stderr, "note: this job computes something else from its weights than {} says: {}\n", file,
                 differences);
  } catch (const Error& error) {
    fmt::print(stderr, "note: whether this job is the model of its weights is unknown: {}\n", error.what());
  }
}

int check_start(const ParsedJob& job, const JobArguments& arguments, StartsAt place, const Context& context) {
  if (arguments.no_data) return kExitDone;  // it is for another machine
  if (!files_exist(job, arguments, context)) return exit_status(ErrorCode::kData);
  note_other_model(job.job.model, context);
  std::vector<Diagnostic> diagnostics;
  const std::vector<StartProblem> problems =
      start_problems(with_data_decided(job, real_file_system()), real_file_system(), place);
  for (const StartProblem& problem : problems) diagnostics.push_back(problem.diagnostic);
  if (problems.empty()) return kExitDone;
  print_diagnostics(diagnostics, problems.front().code, context);
  return exit_status(problems.front().code);
}

int report_mistakes(const std::vector<Diagnostic>& mistakes, const Context& context) {
  print_diagnostics(mistakes, ErrorCode::kSpec, context);
  return exit_status(ErrorCode::kSpec);
}

std::optional<std::string> risk_of(const CheckpointSpec& checkpoint) {
  if (checkpoint.saves_while_training()) return std::nullopt;
  return fmt::format(
      "note: a failure loses all steps: {}; checkpoint.interval = \"auto\" saves as often as pays",
      checkpoint.on_exit ? "only the end and `stop` save a checkpoint" : "no checkpoint is saved");
}

std::string launch_command(const JobArguments& arguments) {
  LaunchLine line;
  line.argv = {"trainctl", "launch", arguments.path};
  for (const std::string& override : arguments.overrides) line.argv.insert(line.argv.end(), {"-s", override});
  return shell_text(line);
}

namespace {

/// What is no regular file, such as a pipe, gives its text only once, and a command asks for it several
/// times.
std::string spec_text(const std::string& path) {
  constexpr std::streamsize kMostBytes = 64 << 20;
  std::error_code unknown;
  if (std::filesystem::is_regular_file(path, unknown) || unknown) return real_file_system().read_text(path);
  static std::map<std::string, std::string> read_before;
  const auto [known, is_new] = read_before.try_emplace(path);
  if (!is_new) return known->second;
  std::ifstream file(path);
  std::string text(size_t(kMostBytes), '\0');
  file.read(text.data(), kMostBytes);
  if (file.bad() || (file.gcount() == 0 && !file.eof()))
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be read", path));
  if (!file.eof())
    throw Error(ErrorCode::kSpec, fmt::format("{} has more than 64 MiB: it is no job spec", path));
  text.resize(size_t(file.gcount()));
  return known->second = std::move(text);
}

}  // namespace

ParseInput job_input(const JobArguments& arguments) {
  FileSystem& fs = real_file_system();
  if (!fs.exists(arguments.path))
    throw Error(ErrorCode::kUsage, fmt::format("there is no job spec {}; `trainctl init -o job.json` writes "
                                               "a starter",
                                               arguments.path));
  if (fs.is_directory(arguments.path))
    throw Error(ErrorCode::kUsage, fmt::format("{} is a folder, not a job spec", arguments.path));
  return {.text = spec_text(arguments.path),
          .file = arguments.path,
          .overrides = arguments.overrides,
          .environment = spec_environment()};
}

std::optional<ParsedJob> load_job(const JobArguments& arguments, const Context& context) {
  const ParseInput input = job_input(arguments);
  return load_job_text(input.text, input.file, input.overrides, context);
}

}  // namespace trainctl::cmd
