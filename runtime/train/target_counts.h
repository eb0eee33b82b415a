// TargetCounts: how many targets of a step count, of the head and of each module of multi-token prediction.
//
// The loss of a module is the mean over its own targets of the whole batch, and the modules' losses together
// count by model.mtp.loss_weight / num_layers each. A module further ahead has fewer targets: documents and
// sequences end. DeepSeek-V3 divides all by the number of tokens (arXiv:2412.19437, formula 24), which lets
// short documents weaken a module; Megatron-LM divides by the module's targets, but by those of one
// micro-batch and context rank. Here it is one division by an integer of the global batch, so that no mesh
// changes a bit.
#pragma once
#include <array>
#include <cstdint>

#include "runtime/model/batch.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct TargetCounts {
  int64_t head = 0;  ///< where targets are weighed, the sum of their weights; so are the others
  std::array<int64_t, kMostMtpLayers> modules = {};
  void add(const TargetCounts& other) {
    head += other.head;
    for (size_t i = 0; i < modules.size(); ++i) modules[i] += other.modules[i];
  }
};

/// Those of a step that masks and weighs no targets.
TargetCounts all_targets(int64_t sequences, int64_t seq_len, int64_t modules);

/// MicroBatch::mtp_scale in 0-based step `step`, so that StepScalars::of_tokens makes of a module's gradients
/// those of its share of the loss.
///   counts  of the whole step
std::array<float, kMostMtpLayers> mtp_scales(const MtpSpec& mtp, const TargetCounts& counts,
                                             int64_t tokens_per_step, int64_t step);

/// Sets what the losses of a micro-batch count by in its gradients: loss_scale, and mtp_scale times it.
///   counts  of the whole step
///   step    0-based, as of mtp_scales
void set_loss_factors(MicroBatch& mb, const JobSpec& job, const TargetCounts& counts, double loss_scale,
                      int64_t step);

}  // namespace trainctl
