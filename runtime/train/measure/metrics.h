// The numbers of one step and their JSON: a line of metrics.jsonl. Rank 0 makes the line without the numbers
// that differ between ranks; the supervisor adds these (with_ranks), for which every rank sends its own.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

struct StepNumbers {
  double unix_s = StepLine::kAbsent;  ///< as in StepLine
  uint64_t epoch = 0;                 ///< of the attempt; 0: not known
  int64_t step = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::optional<double> val_loss;
  bool skipped = false;        ///< the step was skipped: parameters were not updated
  int64_t skipped_total = 0;   ///< skipped steps so far, including this one
  std::optional<int64_t> staged_step, partner_step;  ///< as in StepLine
  int nodes = 0;               ///< of the attempt; 0: one machine
};

/// What the ranks of a run compute together in a step, and by how many stages.
struct StepWork {
  int64_t tokens = 0;
  double flops_per_token_causal = 0, flops_per_token_full = 0;
  double peak_flops_per_s = 0;  ///< of all devices together; 0: not known
  int stages = 1;               ///< pipeline stages; each has the same number of consecutive ranks
};

/// A StepLine without the numbers of ranks.
StepLine line_of(const StepNumbers& numbers);
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
