// A model that was trained: a checkpoint, or a folder in Hugging Face's form.
#pragma once
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "runtime/base/file_system.h"
#include "runtime/train/generate/generate.h"

namespace trainctl {

struct TrainedModel {
  std::string path;  ///< a step directory, or the folder
  JobSpec job;       ///< of a folder: the model and the tokenizer, the rest is the default
  int64_t step = 0;
  std::variant<std::unique_ptr<ckpt::Checkpoint>, std::unique_ptr<ckpt::TensorFolder>> weights;
  std::vector<std::string> notes = {};  ///< what of a folder is left out

  bool is_folder() const { return weights.index() == 1; }
  /// The model on a device; `used` is `job` with changes. `pass_tokens` as in Generator.
  std::unique_ptr<Generator> on(kernels::Backend& backend, const JobSpec& used, int64_t pass_tokens = 0);
};

/// The job whose state a checkpoint holds. Error(kCheckpoint) if it has no usable spec.
JobSpec job_of(const ckpt::Checkpoint& checkpoint);
/// A checkpoint with its weights, or with their moving averages (optimizer.ema) in their place.
/// Error(kCheckpoint).
TrainedModel checkpoint_model(FileSystem& fs, const std::string& path, bool averages);

}  // namespace trainctl
