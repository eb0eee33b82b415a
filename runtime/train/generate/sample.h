// `trainctl sample`: a checkpoint, its tokenizer and a prompt, brought together.
#pragma once
#include <functional>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/train/generate/generate.h"

namespace trainctl {

struct SampleRequest {
  std::string checkpoint;        ///< a step directory
  std::string prompt;            ///< "": the end-of-text token, i.e. the start of a document
  std::string tokenizer;         ///< overrides the one the run was trained with
  GenerateOptions options;
  int threads = 1;
};

struct SampleResult {
  std::string text;              ///< the continuation, without the prompt
  int64_t step = 0, tokens = 0;
  double seconds = 0;
};

/// Error(kCheckpoint) for an unusable checkpoint, Error(kData) if no tokenizer is known or its vocabulary is larger than the model's.
/// `each` gets text as soon as it can be decoded.
SampleResult sample(FileSystem& fs, const SampleRequest& request, const std::function<void(const std::string&)>& each);

}  // namespace trainctl
