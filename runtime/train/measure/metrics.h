// What a step reports: the numbers of one line of metrics.jsonl.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

struct StepNumbers {
  int64_t step = 0, tokens = 0, tokens_per_step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::optional<double> val_loss;
  bool skipped = false;        ///< the step was bad: parameters were not updated
  int64_t skipped_total = 0;   ///< steps skipped so far, this one included
  double flops_per_token_causal = 0, flops_per_token_full = 0, peak_flops_per_s = 0;
  std::vector<RankTimes> ranks;  ///< [world_size], or none
  int stages = 1;                ///< of the pipeline: neighbouring ranks, the same number in each
  std::vector<NodeRanks> nodes;  ///< of a run on several
  double step_s() const;
};

/// One JSON object, whose size does not depend on the number of ranks: phases are means over ranks, other
/// numbers of ranks are summarised (rank_spread.h). A non-finite number is null, and a second field with the ending "_kind" names it.
std::string to_json(const StepNumbers& numbers);

/// One JSON object with the numbers of every rank, each an array in the order of ranks; 4 digits, null where
/// it is not known.
std::string rank_numbers_json(const StepNumbers& numbers, uint64_t epoch);

}  // namespace trainctl
