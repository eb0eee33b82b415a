// How the commands that run a checkpoint's model say which weights, in which format, with which tokenizer.
#pragma once
#include <algorithm>
#include <string>
#include <thread>

#include "cmd/command_line.h"
#include "cmd/runs.h"
#include "runtime/train/generate/sample.h"

namespace trainctl::cmd {

struct ModelArguments {
  RunArguments run;
  std::string tokenizer, dtype;
  bool averages = false;
};

inline void add_model_arguments(CommandLine command, ModelArguments& arguments) {
  command.add_option("--tokenizer", arguments.tokenizer,
                     "tokenizer file or `bytes`, if the run does not name one");
  command.add_option("--dtype", arguments.dtype, "format of weights and products (default: that of the run)")
      .one_of({"bf16", "f32"});
  command.add_flag("--ema", arguments.averages, "with the averages of the weights (optimizer.ema)");
}

/// SampleRequest, EvaluateRequest.
template <typename Request>
void set_model(Request& request, const ModelArguments& arguments) {
  request.checkpoint = find_checkpoint(arguments.run);
  request.tokenizer = data::TokenizerChoice::of(arguments.tokenizer);
  if (!arguments.dtype.empty()) request.compute = arguments.dtype == "f32" ? DType::f32 : DType::bf16;
  request.averages = arguments.averages;
  request.threads = int(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace trainctl::cmd
