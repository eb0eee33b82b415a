// `trainctl sample`: generates text from a checkpoint, its tokenizer and a prompt.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "data/tokenizer_choice.h"
#include "runtime/base/file_system.h"
#include "runtime/machine/rank_device.h"
#include "runtime/train/generate/generate.h"

namespace trainctl {

/// The job whose state a checkpoint holds. Error(kCheckpoint) if it has no usable spec.
JobSpec job_of(const ckpt::Checkpoint& checkpoint);
/// The tokenizer of the job or of its training data; none is given if nothing names one.
data::TokenizerChoice tokenizer_of(const DataSpec& spec);
/// A GPU if there is one, otherwise this machine's cores.
std::unique_ptr<kernels::Backend> one_device(DeviceUse use, int threads);

struct SampleRequest {
  std::string checkpoint;        ///< a step directory
  std::string prompt;            ///< "": the end-of-text token, that is, the start of a document
  data::TokenizerChoice tokenizer;     ///< none: the one of the run
  GenerateOptions options;
  bool averages = false;  ///< --ema: with the averages of the weights
  int threads = 1;
};

struct SampleResult {
  std::string text;              ///< the continuation, without the prompt
  int64_t step = 0, tokens = 0;
  double seconds = 0;
};

/// Generates text. Calls `each` with new text as soon as it can be decoded. Error(kCheckpoint): the
/// checkpoint cannot be used. Error(kData): no tokenizer is known, or its vocabulary is larger than the
/// model's.
SampleResult sample(FileSystem& fs, const SampleRequest& request, const std::function<void(const std::string&)>& each);

}  // namespace trainctl
