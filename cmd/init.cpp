// trainctl init: a commented starter spec.
#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/supervise/preflight/job_files.h"
#include "runtime/spec/suggest.h"

namespace trainctl::cmd {

namespace {

struct Options {
  std::string preset = "gpt2-124m", output;
  bool list = false;
};

/// First line of a preset's page: "preset gpt2-124m: GPT-2 small, 124439808 parameters".
std::string headline(const std::string& preset) {
  const std::string page = explain(preset, nullptr);
  const size_t colon = page.find(": ");
  return page.substr(colon + 2, page.find('\n') - colon - 2);
}

int list_presets(const Context& context) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const std::string& name : preset_names()) {
    if (context.json)
      list.push_back({{"preset", name}, {"summary", headline(name)}});
    else
      fmt::print("{:<14} {}\n", name, headline(name));
  }
  if (context.json) print_json("presets", {{"presets", std::move(list)}});
  return kExitDone;
}

/// The data first, where there is none yet.
std::string next_of(const std::string& file, const std::string& spec, FileSystem& fs) {
  const std::string validate = "trainctl validate " + file;
  const ParsedJob job = parse_job({.text = spec, .file = file});
  return missing_files(job, fs).empty() ? validate : fmt::format("{}, then {}", tokenize_command(job.job, fs), validate);
}

int init(const Options& options, const Context& context) {
  if (options.list) return list_presets(context);
  const std::string spec = starter_job(options.preset);
  if (spec.empty()) {
    const std::vector<std::string> near = closest(options.preset, preset_names(), 1);
    throw Error(ErrorCode::kUsage, fmt::format("there is no preset `{}`; {}", options.preset,
                                               near.empty() ? std::string("`trainctl init --list` lists "
                                                                          "them")
                                                            : fmt::format("did you mean `{}`?", near[0])));
  }
  if (options.output.empty()) {
    if (context.json)
      print_json("init", {{"preset", options.preset}, {"file", ""}, {"text", spec}});
    else
      fmt::print("{}", spec);
    return kExitDone;
  }
  FileSystem& fs = real_file_system();
  if (fs.exists(options.output))
    throw Error(ErrorCode::kUsage,
                fmt::format("{} exists; choose another name or remove it", options.output));
  fs.write_new_text(options.output, spec);
  const std::string next = next_of(options.output, spec, fs);
  if (context.json)
    print_json("init", {{"preset", options.preset}, {"file", options.output}, {"next", next}});
  else if (!context.quiet())
    fmt::print(stderr, "wrote {}. next: {}\n", options.output, next);
  return kExitDone;
}

}  // namespace

void add_init(CommandLine& app, Context& context) {
  auto options = std::make_shared<Options>();
  CommandLine command = app.add_subcommand("init", "write a commented starter job spec");
  command.add_option("PRESET", options->preset, "the model to start from").show_default();
  command.add_option("-o,--output", options->output, "file to write; none: stdout").type_name("FILE");
  command.add_flag("--list", options->list, "list the presets");
  when_chosen(command, context, [options, &context] { return init(*options, context); });
}

}  // namespace trainctl::cmd
