// trainctl init: a commented starter spec. In a terminal it asks for model, data and mesh, and proposes what
// fits this machine.
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/base/units.h"
#include "runtime/exchange/folder_model.h"
#include "runtime/exchange/model_config.h"
#include "runtime/exchange/tokenizer_files.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/suggest.h"
#include "runtime/supervise/preflight/job_files.h"
#include "runtime/supervise/preflight/starter.h"
#include "runtime/train/generate/sample.h"

namespace trainctl::cmd {

namespace {

struct InitOptions {
  std::string preset, output, data;
  RunArguments from{"", ""};
  bool list = false, propose = false;
};

constexpr const char* kUsualFile = "job.json";

/// First line of a preset's page: "preset gpt2-124m: GPT-2 small, 124439808 parameters".
std::string headline(const std::string& preset) {
  const std::string page = explain(preset, nullptr);
  const size_t colon = page.find(": ");
  return page.substr(colon + 2, page.find('\n') - colon - 2);
}

int list_presets(const Context& context) {
  OrderedJson list = OrderedJson::array();
  for (const std::string& name : preset_names()) {
    if (context.json)
      list.push_back({{"preset", name}, {"summary", headline(name)}});
    else
      fmt::print("{:<14} {}\n", name, headline(name));
  }
  if (context.json) print_json("presets", {{"presets", std::move(list)}});
  return kExitDone;
}

std::string no_such_preset(const std::string& name) {
  const std::vector<std::string> near = closest(name, preset_names(), 1);
  return fmt::format(
      "there is no preset `{}`; {}", name,
      near.empty() ? "`trainctl init --list` lists them" : fmt::format("did you mean `{}`?", near[0]));
}

/// The data first, where there is none yet.
std::string next_of(const std::string& file, const std::string& spec, FileSystem& fs) {
  const std::string validate = "trainctl validate " + file;
  const ParsedJob job = parse_job({.text = spec, .file = file});
  return missing_files(job, fs).empty()
             ? validate
             : fmt::format("{}, then {}", tokenize_command(job.job.data, job.job.model.vocab_size, fs),
                           validate);
}

void refuse_existing(const std::string& file) {
  if (!file.empty() && real_file_system().exists(file))
    throw Error(ErrorCode::kUsage, fmt::format("{} exists; choose another name or remove it", file));
}

int write(const std::string& preset, const std::string& file, const std::string& spec,
          const Context& context) {
  if (file.empty()) {
    if (context.json)
      print_json("init", {{"preset", preset}, {"file", ""}, {"text", spec}});
    else
      fmt::print("{}", spec);
    return kExitDone;
  }
  FileSystem& fs = real_file_system();
  refuse_existing(file);
  fs.write_new_text(file, spec);
  const std::string next = next_of(file, spec, fs);
  if (context.json)
    print_json("init", {{"preset", preset}, {"file", file}, {"next", next}});
  else if (!context.quiet())
    fmt::print(stderr, "wrote {}. next: {}\n", file, next);
  return kExitDone;
}

// ---- questions -------------------------------------------------------------------------------------------

/// Asks until `take` accepts the answer; an empty answer is `usual`. `take` returns what is wrong.
void ask(const std::string& question, const std::string& usual,
         const std::function<Problem(const std::string&)>& take) {
  for (;;) {
    fmt::print(stderr, "{} [{}]: ", question, usual);
    std::fflush(stderr);
    std::string answer;
    if (!std::getline(std::cin, answer))
      throw Error(ErrorCode::kUsage, "no answer came; nothing was written");
    answer.erase(0, answer.find_first_not_of(" \t"));
    answer.erase(answer.find_last_not_of(" \t") + 1);
    const Problem problem = take(answer.empty() ? usual : answer);
    if (problem.is_none()) return;
    fmt::print(stderr, "  {}\n", problem.text());
  }
}

std::string text_of_tokens(const FoundTokens& t) {
  return fmt::format("{}: {} tokens{}, vocabulary {}, tokenizer {}", t.path, count_text(double(t.tokens)),
                     t.val_path.empty() ? "" : " and validation", t.vocab_size, t.tokenizer);
}

std::string folder_of(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }

/// The token set that PREFIX or PREFIX.idx names; nullopt: `data tokenize` has written none of that name.
std::optional<FoundTokens> tokens_named(const std::string& path) {
  const auto plain = [](const std::string& text) { return std::filesystem::path(text).lexically_normal(); };
  for (const FoundTokens& tokens :
       find_tokens(real_file_system(), folder_of(path).empty() ? "." : folder_of(path)))
    if (plain(tokens.path) == plain(path) || plain(tokens.path) == plain(path + ".idx")) return tokens;
  return std::nullopt;
}

Problem no_token_set(const std::string& path) {
  return Problem(fmt::format(
      "{} is no token set that `trainctl data tokenize` has written; write the path of an .idx file", path));
}

std::vector<FoundTokens> tokens_here() {
  std::vector<FoundTokens> found = find_tokens(real_file_system(), "data");
  for (FoundTokens& tokens : find_tokens(real_file_system(), ".")) {
    tokens.path.erase(0, 2);
    if (!tokens.val_path.empty()) tokens.val_path.erase(0, 2);
    found.push_back(std::move(tokens));
  }
  return found;
}

void ask_model(StarterChoice& choice, const StarterMachine& machine) {
  for (const std::string& name : preset_names()) fmt::print(stderr, "  {:<14} {}\n", name, headline(name));
  ask("model", proposed_preset(machine), [&](const std::string& answer) {
    if (!starter_model(answer)) return Problem(no_such_preset(answer));
    choice.preset = answer;
    return Problem::none();
  });
}

void ask_data(StarterChoice& choice) {
  const std::vector<FoundTokens> found = tokens_here();
  if (found.empty()) {
    fmt::print(stderr,
               "no token set in data/: the job reads data/train.idx, which `trainctl data tokenize` makes\n");
    return;
  }
  for (const FoundTokens& tokens : found) fmt::print(stderr, "  {}\n", text_of_tokens(tokens));
  ask("training data", found.front().path, [&](const std::string& answer) {
    choice.tokens = tokens_named(answer);
    return choice.tokens ? Problem::none() : no_token_set(answer);
  });
}

/// "108 MiB of 14.2 GiB on this machine".
std::string text_of_fit(const StarterFit& fit) {
  return fit.known ? fmt::format("{} of {} on {}", memory_text(double(fit.needed)),
                                 memory_text(double(fit.room)), fit.device)
                   : memory_text(double(fit.needed));
}

void ask_mesh(StarterChoice& choice, const StarterMachine& machine, const std::string& folder) {
  choice = proposed_mesh(std::move(choice), machine);
  if (!choice.mesh) {
    fmt::print(stderr,
               "the model does not fit this machine; the mesh of the starter is for GPUs elsewhere (see "
               "`trainctl plan`)\n");
    return;
  }
  fmt::print(
      stderr,
      "  tensor x pipeline x data, and xcN for N ranks that share sequences, xeN for N that share experts; "
      "{} needs {}\n",
      text_of(*choice.mesh), text_of_fit(fit_of_starter(starter_text(choice, folder), machine.device)));
  ask("ranks", text_of(*choice.mesh), [&](const std::string& answer) {
    const auto mesh = parse_starter_mesh(answer);
    if (!mesh) return Problem(fmt::format("`{}` is no mesh; write for example 1x2x4", answer));
    StarterChoice tried = choice;
    tried.mesh = mesh;
    const StarterFit fit = fit_of_starter(starter_text(tried, folder), machine.device);
    if (!fit.valid) return Problem(fit.problem);
    if (fit.known && !fit.fits) return Problem(fmt::format("it does not fit: it needs {}", text_of_fit(fit)));
    choice = tried;
    return Problem::none();
  });
}

int ask_all(const InitOptions& options, StarterChoice choice, const Context& context) {
  refuse_existing(options.output);
  const StarterMachine machine = starter_machine();
  if (!choice.model) ask_model(choice, machine);
  if (!choice.tokens) ask_data(choice);
  ask_mesh(choice, machine, folder_of(options.output));
  std::string file = options.output;
  if (file.empty())
    ask("file", kUsualFile, [&](const std::string& answer) {
      if (real_file_system().exists(answer))
        return Problem(fmt::format("{} exists; choose another name", answer));
      file = answer;
      return Problem::none();
    });
  return write(choice.preset, file, starter_text(choice, folder_of(file)), context);
}

/// The model of a folder of Hugging Face, whose weights the job begins with, or of a checkpoint or run.
StarterChoice choice_from(const RunArguments& from) {
  FileSystem& fs = real_file_system();
  const std::string config = from.name + "/config.json";
  if (fs.exists(config)) {
    const Json fields = try_parse_json(fs.read_text(config));
    if (fields.is_discarded()) throw Error(ErrorCode::kData, fmt::format("{} is not JSON", config));
    ReadConfig read = read_model_config(fields, config);
    if (read.model.mtp.num_layers > 0)
      leave_out_missing_modules(read, *ckpt::TensorFolder::open(fs, from.name));
    const std::string folder = std::filesystem::path(absolute_path(from.name)).filename().string();
    StarterChoice choice{.model = starter_model_of(read.model, folder), .begins_with = from.name};
    choice.tokenizer = tokenizer_in(fs, from.name, read.model.vocab_size).text();
    return choice;
  }
  const auto checkpoint = ckpt::Checkpoint::open(fs, find_checkpoint(from));
  const JobSpec job = job_of(*checkpoint);
  return {.model = starter_model_of(job.model, job.name), .tokenizer = job.data.tokenizer.text()};
}

StarterChoice choice_of(const InitOptions& options) {
  StarterChoice choice;
  if (!options.from.name.empty()) choice = choice_from(options.from);
  if (!options.preset.empty()) choice.preset = options.preset;
  if (options.data.empty()) return choice;
  choice.tokens = tokens_named(options.data);
  if (!choice.tokens) throw Error(ErrorCode::kUsage, no_token_set(options.data).text());
  return choice;
}

bool may_ask(const InitOptions& options, const Context& context) {
  return options.preset.empty() && !options.propose && !context.json && ::isatty(STDIN_FILENO) &&
         ::isatty(STDOUT_FILENO) && ::isatty(STDERR_FILENO);
}

int init(const InitOptions& options, const Context& context) {
  if (options.list) return list_presets(context);
  if (!options.preset.empty() && !starter_model(options.preset))
    throw Error(ErrorCode::kUsage, no_such_preset(options.preset));
  StarterChoice choice = choice_of(options);
  if (may_ask(options, context)) return ask_all(options, std::move(choice), context);
  // Those of another tokenizer are nothing to a model that has learned.
  for (const FoundTokens& found : tokens_here())
    if (!choice.tokens && (choice.tokenizer.empty() || is_tokenizer_of(found, choice.tokenizer)))
      choice.tokens = found;
  const bool is_chosen = choice.model || !choice.preset.empty();
  if (options.propose || !is_chosen) {
    const StarterMachine machine = starter_machine();
    if (!is_chosen) choice.preset = proposed_preset(machine);
    choice = proposed_mesh(std::move(choice), machine);
  }
  return write(choice.preset, options.output, starter_text(choice, folder_of(options.output)), context);
}

}  // namespace

void add_init(CommandLine& app, Context& context) {
  auto options = std::make_shared<InitOptions>();
  CommandLine command = app.add_subcommand(
      "init", "write a commented starter job spec; in a terminal, ask for model, data and mesh");
  Option preset = command.add_option(
      "PRESET", options->preset,
      "the model to start from, without questions (default if nothing is asked: one for this "
      "machine)");
  command.add_option("-o,--output", options->output,
      "file to write (default: stdout)").type_name("FILE");
  command
      .add_option(
          "--data", options->data,
          "token set to train on (default: the first one in data/ or here), for vocabulary, tokenizer "
          "and length")
      .type_name("PREFIX");
  Option from = command.add_option("--from", options->from.name,
                                   "take the model of this checkpoint, run or folder of Hugging Face");
  from.type_name("RUN|DIR").excludes(preset);
  options->from.root = default_run_root();
  command.add_flag("--propose", options->propose, "ask nothing, and take the mesh that fits this machine");
  command.add_flag("--list", options->list, "list the presets");
  when_chosen(command, context, [options, &context] { return init(*options, context); });
}

}  // namespace trainctl::cmd
