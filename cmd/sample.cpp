// trainctl sample: generates text from a checkpoint behind each prompt, on a GPU if there is one and on the
// CPU otherwise.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/train/generate/sample.h"

namespace trainctl::cmd {
namespace {

struct SampleOptions {
  RunArguments run;
  SampleRequest request;
  std::vector<std::string> prompts;
  std::string tokenizer;
  bool interactive = false;
};

/// Writes the text behind one prompt to stdout.
SampleResult write(Sampler& sampler, const std::string& prompt, const SampleOptions& options,
                   const Context& context) {
  // The prompt is shown with the first text, so that what cannot be read prints nothing.
  std::string unshown = context.json ? "" : prompt;
  const auto show = [&](const std::string& text) {
    if (context.json) return;
    fmt::print("{}{}", std::exchange(unshown, ""), text);
    std::fflush(stdout);
  };
  SampleResult result = sampler.write(prompt, show);
  show("\n");
  if (context.json)
    print_json("sample",
               {{"checkpoint", options.request.checkpoint},
                {"step", result.step},
                {"prompt", prompt},
                {"text", result.text},
                {"tokens", result.tokens},
                {"seconds", result.seconds}},
               -1);
  return result;
}

/// The next line of stdin, asked for in a terminal; false at the end.
bool next_prompt(std::string& prompt) {
  if (::isatty(STDIN_FILENO) && ::isatty(STDERR_FILENO)) fmt::print(stderr, "> ");
  return bool(std::getline(std::cin, prompt));
}

int run(SampleOptions options, const Context& context) {
  if (!std::isfinite(options.request.options.temperature))
    throw Error(ErrorCode::kUsage, "--temperature is not a number; use 0 (the likeliest token) to 100");
  options.request.checkpoint = find_checkpoint(options.run);
  options.request.tokenizer = data::TokenizerChoice::of(options.tokenizer);
  options.request.threads = int(std::max(1u, std::thread::hardware_concurrency()));
  if (options.prompts.empty() && !options.interactive) options.prompts.emplace_back();
  Sampler sampler(real_file_system(), options.request);
  SampleResult all;
  const auto one = [&](const std::string& prompt) {
    const SampleResult result = write(sampler, prompt, options, context);
    all.step = result.step;
    all.tokens += result.tokens;
    all.seconds += result.seconds;
  };
  for (const std::string& prompt : options.prompts) one(prompt);
  for (std::string prompt; options.interactive && next_prompt(prompt);) one(prompt);
  std::fflush(stdout);  // the line below goes behind the text, also where both go into one pipe
  if (!context.json && !context.quiet() && all.seconds > 0)
    fmt::print(stderr, "-- {} tokens in {:.1f} s from step {} · next: trainctl inspect-ckpt {}\n", all.tokens,
               all.seconds, all.step, shell_quoted(options.request.checkpoint));
  return kExitDone;
}

}  // namespace

void add_sample(CommandLine& app, Context& context) {
  auto options = std::make_shared<SampleOptions>();
  CommandLine command = app.add_subcommand("sample", "generate text from a checkpoint");
  add_run_arguments(command, options->run, true);
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
  command.add_option("--tokenizer", options->tokenizer, "tokenizer file or `bytes`, if the run does not "
                                                        "name one");
  command.add_flag("--ema", options->request.averages, "with the averages of the weights (optimizer.ema)");
  when_chosen(command, context, [options, &context] { return run(*options, context); });
}

}  // namespace trainctl::cmd
