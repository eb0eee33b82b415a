// trainctl sample: generates text from a trained model behind each prompt, on a GPU if there is one and on
// the CPU otherwise.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <utility>

#include "cmd/commands.h"
#include "cmd/model_arguments.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/train/generate/sample.h"

namespace trainctl::cmd {
namespace {

struct SampleOptions {
  ModelArguments model;
  SampleRequest request;
  std::vector<std::string> prompts;
  bool interactive = false;
};

/// What may be done next with the model.
std::string next_command(const TrainedModel& model) {
  const std::string path = shell_quoted(model.path);
  return model.is_folder() ? fmt::format("init --from {} -o job.json", path) : "inspect-ckpt " + path;
}

/// Shows the texts of prompts one after another, although they grow at the same time: that of the first one as
/// it comes, the others at the end.
class Shown {
 public:
  Shown(const std::vector<std::string>& prompts, bool quiet)
      : prompts_(prompts), quiet_(quiet), waiting_(prompts.size()) {}
  void add(size_t prompt, const std::string& text) {
    if (prompt == 0)
      show(0, text);
    else
      waiting_[prompt] += text;
  }
  void end() {
    for (size_t i = 0; i < prompts_.size(); ++i) {
      show(i, waiting_[i] + "\n");
      begun_ = false;
    }
  }

 private:
  /// The prompt is shown with the first text, so that what cannot be read prints nothing.
  void show(size_t prompt, const std::string& text) {
    if (quiet_) return;
    fmt::print("{}{}", std::exchange(begun_, true) ? "" : prompts_[prompt], text);
    std::fflush(stdout);
  }
  const std::vector<std::string>& prompts_;
  const bool quiet_;
  std::vector<std::string> waiting_;
  bool begun_ = false;
};

/// Writes the text behind each prompt to stdout.
std::vector<SampleResult> write(Sampler& sampler, const std::vector<std::string>& prompts,
                                const std::string& path, const Context& context) {
  Shown shown(prompts, context.json);
  std::vector<SampleResult> results =
      sampler.write(prompts, [&](size_t prompt, const std::string& text) { shown.add(prompt, text); });
  shown.end();
  for (size_t i = 0; context.json && i < results.size(); ++i)
    print_json("sample",
               {{"checkpoint", path},
                {"step", results[i].step},
                {"prompt", prompts[i]},
                {"text", results[i].text},
                {"tokens", results[i].tokens},
                {"seconds", results[i].seconds}},
               -1);
  return results;
}

/// The next line of stdin, asked for in a terminal; false at the end.
bool next_prompt(std::string& prompt) {
  if (::isatty(STDIN_FILENO) && ::isatty(STDERR_FILENO)) fmt::print(stderr, "> ");
  return bool(std::getline(std::cin, prompt));
}

int run(SampleOptions options, const Context& context) {
  if (!std::isfinite(options.request.options.temperature))
    throw Error(ErrorCode::kUsage, "--temperature is not a number; use 0 (the likeliest token) to 100");
  set_model(options.request, options.model);
  if (options.prompts.empty() && !options.interactive) options.prompts.emplace_back();
  TrainedModel model = open_model(options.model, context);
  Sampler sampler(real_file_system(), model, options.request);
  SampleResult all;
  const auto some = [&](const std::vector<std::string>& prompts) {
    double longest_s = 0;
    for (const SampleResult& result : write(sampler, prompts, model.path, context)) {
      all.step = result.step;
      all.tokens += result.tokens;
      longest_s = std::max(longest_s, result.seconds);
    }
    all.seconds += longest_s;
  };
  if (!options.prompts.empty()) some(options.prompts);
  for (std::string prompt; options.interactive && next_prompt(prompt);) some({prompt});
  std::fflush(stdout);  // the line below goes behind the text, also where both go into one pipe
  if (!context.json && !context.quiet() && all.seconds > 0)
    fmt::print(stderr, "-- {} tokens in {:.1f} s from {} · next: trainctl {}\n", all.tokens, all.seconds,
               model.is_folder() ? model.path : fmt::format("step {}", all.step), next_command(model));
  return kExitDone;
}

}  // namespace

void add_sample(CommandLine& app, Context& context) {
  auto options = std::make_shared<SampleOptions>();
  CommandLine command =
      app.add_subcommand("sample", "generate text from a checkpoint or a Hugging Face folder");
  add_run_arguments(command, options->model.run, true, kTrainedModel);
  const Option prompt =
      command
          .add_option("-p,--prompt", options->prompts,
                      "text to continue (default: the start of a document); may be repeated")
          .type_name("TEXT")
          .repeatable();
  command
      .add_flag("-i,--interactive", options->interactive,
                "read prompts from standard input, one a line, and continue each")
      .excludes(prompt);
  command.add_option("-n,--tokens", options->request.options.tokens, "tokens to generate").show_default().range(1, 1000000);
  command.add_option("-t,--temperature", options->request.options.temperature,
      "how random the text is; 0: always the likeliest token").show_default()
      .range(0.0, 100.0);
  command.add_option("--top-k", options->request.options.top_k, "draw only from the k likeliest tokens (0: "
                                                                "from all)")
      .range(0, 1000000000);
  command.add_option("--seed", options->request.options.seed, "the same seed gives the same text").type_name("N").show_default();
  add_model_arguments(command, options->model);
  when_chosen(command, context, [options, &context] { return run(*options, context); });
}

}  // namespace trainctl::cmd
