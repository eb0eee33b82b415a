// The numbers of one step and their JSON: a line of metrics.jsonl.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

struct StepNumbers {
  double unix_s = StepLine::kAbsent;  ///< as in StepLine
  uint64_t epoch = 0;                 ///< of the attempt; 0: not known
  int64_t step = 0, tokens = 0, tokens_per_step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::optional<double> val_loss;
  bool skipped = false;        ///< the step was skipped: parameters were not updated
  int64_t skipped_total = 0;   ///< skipped steps so far, including this one
  std::optional<int64_t> staged_step, partner_step;  ///< as in StepLine
  double flops_per_token_causal = 0, flops_per_token_full = 0, peak_flops_per_s = 0;
  std::vector<RankTimes> ranks;  ///< [world_size], or empty
  int stages = 1;                ///< pipeline stages; each has the same number of consecutive ranks
  std::vector<NodeRanks> nodes;  ///< the ranks of each node; empty: one machine
  double step_s() const;
};

/// A StepLine as text: phases are means over ranks, other numbers of ranks are summarised (rank_spread.h).
std::string to_json(const StepNumbers& numbers);

/// One JSON object with an array per number, in the order of ranks. Numbers have 4 digits; null: not known.
std::string rank_numbers_json(const StepNumbers& numbers);

}  // namespace trainctl
