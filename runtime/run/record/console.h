// What a run says to the person who started it: the port of the supervisor, and the numbers of one step as people see them.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace trainctl {

/// One step as the console shows it. Taken from the JSON of a step report; absent numbers are NaN.
struct StepView {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens = 0, step_s = 0, tokens_per_s = 0, mfu = 0, data_wait = 0,
         val_loss = 0;
  double compute_min_s = 0, compute_median_s = 0, compute_max_s = 0;  ///< over the ranks
  int compute_max_rank = -1;
  std::string compute_max_node;  ///< "" where nodes are not known
  int rank_count = 0;            ///< that gave these numbers
  /// How much longer the slowest rank computes than the median, as a share of it; NaN where it is not known.
  double skew() const {
    return rank_count > 1 ? compute_max_s / compute_median_s - 1 : std::numeric_limits<double>::quiet_NaN();
  }
  bool skipped = false;       ///< loss or gradient norm were not finite; parameters were not updated
  int64_t skipped_steps = 0;  ///< so far
};
StepView step_view(const std::string& json);

/// Where those lines go; a terminal's is runtime/run/record/console.h.
class Console {
 public:
  virtual ~Console() = default;
  /// A line that is always shown, also with --quiet: failures and what to do.
  virtual void say(const std::string& line) = 0;
  /// A line of ordinary progress: " ▸ checkpoint step 500", "✓ data".
  virtual void note(const std::string& line) = 0;
  /// Called for every step; `log`: it is due in the table as well. `unix_s` for the key=value form.
  virtual void step(const StepView& view, bool log, double unix_s) = 0;
  /// Takes the progress line away, so that other text starts on a clean line.
  virtual void clear() = 0;
  virtual void set_total_steps(int64_t total) = 0;
};

}  // namespace trainctl
