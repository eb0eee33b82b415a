// trainctl sample: generates text from a checkpoint, on a GPU if there is one and on the CPU otherwise.
#include <cmath>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/train/generate/sample.h"

namespace trainctl::cmd {
namespace {

struct SampleOptions {
  RunArguments run;
  SampleRequest request;
  std::string tokenizer;
};

int run(SampleOptions options, const Context& context) {
  if (!std::isfinite(options.request.options.temperature))
    throw Error(ErrorCode::kUsage, "--temperature is not a number; use 0 (the likeliest token) to 100");
  options.request.checkpoint = find_checkpoint(options.run);
  options.request.tokenizer = data::TokenizerChoice::of(options.tokenizer);
  options.request.threads = int(std::max(1u, std::thread::hardware_concurrency()));
  // The prompt is shown with the first text, so that a refused checkpoint or tokenizer prints nothing.
  std::string unshown = context.json ? "" : options.request.prompt;
  const auto show = [&](const std::string& text) {
    if (context.json) return;
    fmt::print("{}{}", std::exchange(unshown, ""), text);
    std::fflush(stdout);
  };
  const SampleResult result = sample(real_file_system(), options.request, show);
  show("");
  if (context.json) {
    print_json("sample", {{"checkpoint", options.request.checkpoint},
                          {"step", result.step},
                          {"prompt", options.request.prompt},
                          {"text", result.text},
                          {"tokens", result.tokens},
                          {"seconds", result.seconds}},
               -1);
    return kExitDone;
  }
  fmt::print("\n");
  std::fflush(stdout);  // the line below goes behind the text, also where both go into one pipe
  if (!context.quiet())
    fmt::print(stderr, "-- {} tokens in {:.1f} s from step {} · next: trainctl inspect-ckpt {}\n", result.tokens, result.seconds,
               result.step, options.request.checkpoint);
  return kExitDone;
}

}  // namespace

void add_sample(CommandLine& app, Context& context) {
  auto options = std::make_shared<SampleOptions>();
  CommandLine command = app.add_subcommand("sample", "generate text from a checkpoint");
  add_run_arguments(command, options->run, true);
  command.add_option("-p,--prompt", options->request.prompt, "text to continue (default: the start of a document)");
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
