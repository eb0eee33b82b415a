// What a step reports: the numbers of one line of metrics.jsonl.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

/// What one rank says about one step: seconds (forward, backward and optimizer without waits for peers, which are
/// communication_s), the largest memory it has held, and how its GPU is (NaN: not told); exchanged as doubles in this order. On a GPU
/// forward, backward and optimizer are the host's time, which only enqueues them; step_s is the device's, too. step_s runs from the end of
/// the step before to the end of this one, without evaluation and saving; its part before this step's own work is reporting_s.
struct RankTimes {
  double forward_s = 0, backward_s = 0, communication_s = 0, optimizer_s = 0, data_s = 0, reporting_s = 0, step_s = 0;
  double evaluation_s = 0, checkpoint_s = 0;   ///< after the step; the save reported is the one before this step
  double peak_bytes = 0;
  double temperature_c = NAN, power_w = NAN, sm_clock_mhz = NAN;
  static constexpr int kCount = 13;
  /// Time in which this rank computed rather than waited.
  double compute_s() const { return step_s - communication_s - data_s - reporting_s; }
};

struct StepNumbers {
  int64_t step = 0, tokens = 0, tokens_per_step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::optional<double> val_loss;
  bool skipped = false;        ///< the step was bad: parameters were not updated
  int64_t skipped_total = 0;   ///< steps skipped so far, this one included
  double flops_per_token_causal = 0, flops_per_token_full = 0, peak_flops_per_s = 0;
  std::vector<RankTimes> ranks;
  double step_s() const;
};

/// One JSON object. Phases are means over ranks; non-finite numbers are null with a "_kind" beside them.
std::string to_json(const StepNumbers& numbers);

}  // namespace trainctl
