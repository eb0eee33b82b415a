// How the commands that run a trained model say which weights, in which format, with which tokenizer.
#pragma once
#include <algorithm>
#include <string>
#include <thread>

#include "cmd/command_line.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/exchange/folder_model.h"

namespace trainctl::cmd {

/// What RUN may be where a model is run.
inline constexpr const char* kTrainedModel =
    "id, unique beginning of one, path, `latest`; or a checkpoint; or a Hugging Face folder";

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

/// The newest usable checkpoint of a run, a checkpoint, or a Hugging Face folder, whose notes are printed.
inline TrainedModel open_model(const ModelArguments& arguments, const Context& context) {
  FileSystem& fs = real_file_system();
  const std::string& name = arguments.run.name;
  if (!fs.exists(name + "/config.json"))
    return checkpoint_model(fs, find_checkpoint(arguments.run), arguments.averages);
  if (arguments.averages)
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} is a Hugging Face folder, which has no averages of the weights; leave --ema out",
                    name));
  TrainedModel model = folder_model(fs, name, arguments.tokenizer.empty());
  for (const std::string& note : model.notes)
    if (!context.quiet()) fmt::print(stderr, "note: {}\n", note);
  return model;
}

/// SampleRequest, EvaluateRequest.
template <typename Request>
void set_model(Request& request, const ModelArguments& arguments) {
  request.tokenizer = data::TokenizerChoice::of(arguments.tokenizer);
  if (!arguments.dtype.empty()) request.compute = arguments.dtype == "f32" ? DType::f32 : DType::bf16;
  request.threads = int(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace trainctl::cmd
