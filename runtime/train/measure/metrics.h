// What completes a StepLine: the speed of the step, and the numbers of its ranks, which the supervisor adds
// because every rank sends its own.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

/// What the ranks of a run compute together in a step, and by how many stages.
struct StepWork {
  int64_t tokens = 0;
  double flops_per_token_causal = 0, flops_per_token_full = 0;
  double peak_flops_per_s = 0;  ///< of all devices together; 0: not known
  int stages = 1;               ///< pipeline stages; each has the same number of consecutive ranks
};

/// The line with the speed of a step that took `step_s`.
StepLine with_speed(StepLine line, const StepWork& work, double step_s);

/// The line with the numbers of its ranks: phases are means over ranks, other numbers are summarised
/// (rank_spread.h). Unchanged if no rank's numbers came.
///   ranks  [world_size]
///   nodes  the ranks of each node; empty: one machine
StepLine with_ranks(StepLine line, const StepWork& work, std::span<const RankTimes> ranks,
                    std::span<const NodeRanks> nodes);

/// One JSON object with an array per number, in the order of ranks. Numbers have 4 digits; null: not known.
std::string rank_numbers_json(uint64_t epoch, int64_t step, std::span<const RankTimes> ranks);

}  // namespace trainctl
