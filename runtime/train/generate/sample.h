// `trainctl sample`: generates text from a trained model, its tokenizer and prompts.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "data/tokenizer.h"
#include "data/tokenizer_choice.h"
#include "runtime/machine/rank_device.h"
#include "runtime/train/generate/trained_model.h"

namespace trainctl {

/// A GPU if there is one, otherwise this machine's cores.
std::unique_ptr<kernels::Backend> one_device(DeviceUse use, int threads);

struct SampleRequest {
  data::TokenizerChoice tokenizer;  ///< none: the one of the model's job
  GenerateOptions options;
  std::optional<DType> compute;  ///< of weights and products; none: that of the model's job
  int threads = 1;
};

struct SampleResult {
  std::string text;              ///< the continuation, without the prompt
  int64_t step = 0, tokens = 0;
  double seconds = 0;  ///< from the begin until its last token
};

/// Generates text behind prompts, with the model loaded once.
class Sampler {
 public:
  /// Loads the weights. Error(kCheckpoint): they cannot be used. Error(kData): no tokenizer is known, or its
  /// vocabulary is larger than the model's.
  Sampler(FileSystem& fs, TrainedModel& model, const SampleRequest& request);
  /// Continues the prompts together (Generator::generate); "": the end-of-text token, that is, the start of a
  /// document. Calls `each` with new text of a prompt as soon as it can be decoded. On a CPU the text
  /// of a prompt does not depend on the others, nor on earlier ones.
  std::vector<SampleResult> write(const std::vector<std::string>& prompts,
                                  const std::function<void(size_t prompt, const std::string&)>& each);

 private:
  const int64_t step_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<Generator> generator_;
  GenerateOptions options_;
};

}  // namespace trainctl
