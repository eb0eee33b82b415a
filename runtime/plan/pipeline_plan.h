// The numbers of a step's pipeline for the plan: micro-batches in flight, messages, idle time. They are
// computed without the programs of all micro-batches, of which there may be a billion.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/model/stage_uses.h"

namespace trainctl {

struct PipelinePlan {
  std::vector<std::vector<int>> slots;  ///< [stage][local virtual stage] micro-batches in flight at once
  std::vector<int64_t> sends;           ///< [stage] activations and gradients sent in a step
  double bubble_fraction = 0;           ///< mean idle share of a stage, from the simulated schedule
};

/// Simulates the programs of a data-parallel rank. After the micro-batches that fill the pipeline, each
/// further round of `stages` micro-batches adds the same work, the same messages and as many slots, and no
/// idle time. So if all stages together have more than `most_simulated` micro-batches to compute, only the
/// first rounds are simulated.
PipelinePlan plan_pipeline(const StepCut& cut, int dp_rank, int64_t most_simulated = 1 << 16);

}  // namespace trainctl
