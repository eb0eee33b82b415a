// The FLOPs of a model, counted by running the model on the tally twin.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/model/model_plan.h"

namespace trainctl {

/// The FLOPs of one token, forward and backward, without recomputation. They include every matrix product (the
/// head once, not the embedding look-up) and attention: over all pairs of tokens (full), or only over the
/// computed half (causal).
struct FlopsPerToken {
  double full = 0, causal = 0;
};
FlopsPerToken flops_per_token(const ModelPlan& model, int64_t seq_len);

/// The same of each part of the model, causal. head: with the final norm and the loss.
struct PartFlops {
  double embedding = 0;
  std::vector<double> layers;  ///< each layer's
  double head = 0;             ///< with the modules of multi-token prediction
};
PartFlops part_flops(const ModelPlan& model, int64_t seq_len);

/// Parameters of experts that a token does not meet.
int64_t idle_parameters(const ModelPlan& model);

}  // namespace trainctl
