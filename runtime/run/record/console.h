// Console: the interface through which the supervisor reports to the person who started the run; StepView:
// the numbers of one step for people.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace trainctl {

/// One step as the console shows it, read from the JSON of a step report. Absent floating-point numbers are
/// NaN.
struct StepView {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens = 0, step_s = 0, tokens_per_s = 0, mfu = 0, data_wait = 0,
         val_loss = 0;
  double compute_min_s = 0, compute_median_s = 0, compute_max_s = 0;  ///< over the ranks
  int compute_max_rank = -1;
  std::string compute_max_node;  ///< "" if the report names no nodes
  int rank_count = 0;            ///< ranks that reported compute times
  /// (slowest rank's compute time) / (median) - 1; NaN if fewer than two ranks reported.
  double skew() const {
    return rank_count > 1 ? compute_max_s / compute_median_s - 1 : std::numeric_limits<double>::quiet_NaN();
  }
  bool skipped = false;       ///< loss or gradient norm were not finite; parameters were not updated
  int64_t skipped_steps = 0;  ///< skipped steps of the run so far
};
/// Text that is not a JSON object gives a view without numbers.
StepView step_view(const std::string& json);

/// Shows the lines of a run. The implementation for terminals and logs is in runtime/observe/console.h.
class Console {
 public:
  virtual ~Console() = default;
  /// Shows a line always, also with --quiet: a failure and what to do.
  virtual void say(const std::string& line) = 0;
  /// Shows a line of ordinary progress: " ▸ checkpoint step 500", "✓ data".
  virtual void note(const std::string& line) = 0;
  /// Called for every step. `log`: the table gets a row for this step. `unix_s`: for the key=value form.
  virtual void step(const StepView& view, bool log, double unix_s) = 0;
  /// Removes the progress line, so that other text starts on an empty line.
  virtual void clear() = 0;
  virtual void set_total_steps(int64_t total) = 0;
};

}  // namespace trainctl
