// What the computation of a model costs, counted by running the model on the tally twin.
#pragma once
#include <cstdint>

#include "runtime/spec/fields/job.h"

namespace trainctl {

/// FLOPs of one token, forward and backward, without recomputation: of every matrix product (the head once,
/// the embedding look-up not) and of attention over all pairs of tokens (full) or those that are really
/// computed (causal: half).
struct FlopsPerToken {
  double full = 0, causal = 0;
};
FlopsPerToken flops_per_token(const ModelSpec& model, int64_t seq_len);

}  // namespace trainctl
