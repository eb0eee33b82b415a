// Generates tokens from a checkpoint on one device (a CPU or a GPU).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct GenerateOptions {
  int64_t tokens = 100;
  double temperature = 0.8;   ///< 0: greedy
  int64_t top_k = 0;          ///< 0: all
  uint64_t seed = 1;
  int32_t stop_token = -1;    ///< stop at this token; -1: none
};

/// A whole model on one device, loaded from a checkpoint of any mesh.
class Generator {
 public:
  /// `job`: the run's spec; its mesh, batch and schedule are ignored. `pass_tokens`: a pass of the model has so
  /// many tokens at most, whose activations and logits have memory; 0: seq_len, which `logits` and `losses`
  /// need.
  Generator(const JobSpec& job, ckpt::Checkpoint& checkpoint, kernels::Backend& backend,
            int64_t pass_tokens = 0);
  /// With the weights of a folder of Hugging Face safetensors.
  Generator(const JobSpec& job, ckpt::TensorFolder& folder, kernels::Backend& backend,
            int64_t pass_tokens = 0);
  ~Generator();
  /// Continues each of the prompts (none is empty) and returns the new tokens of each, which on a CPU do not
  /// depend on the other prompts. The context is the last seq_len tokens. All prompts go on by a token at a
  /// time, in one pass of the model while their new tokens fit into one; a longer prompt is read in several.
  /// Calls `each` with every new token and the number of its prompt. Error(kCheckpoint): logits that are not
  /// finite.
  std::vector<std::vector<int32_t>> generate(std::vector<std::vector<int32_t>> prompts,
                                             const GenerateOptions& options,
                                             const std::function<void(size_t prompt, int32_t)>& each);
  /// The logits [V] behind the last of `tokens` (1 .. seq_len). Only those tokens are computed that do not
  /// begin as the ones of the call before.
  std::vector<float> next_logits(std::span<const int32_t> tokens);
  /// The logits [count, V] behind each of `tokens` (1 .. seq_len).
  std::vector<float> logits(std::span<const int32_t> tokens);
  /// The losses of a sequence of at most seq_len tokens: StageModel::losses.
  std::vector<float> losses(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                            std::span<const int32_t> document_start);
  int64_t seq_len() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The next token for these logits: the largest (temperature 0), or drawn with Philox at `index`. Pure.
int32_t pick_token(std::span<const float> logits, const GenerateOptions& options, uint64_t index);

}  // namespace trainctl
