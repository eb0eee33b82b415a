// A summary of one launch or resume in a few lines: time, tokens, speed, losses, skipped steps.
#pragma once
#include <string>

#include "runtime/run/record/console.h"

namespace trainctl {

/// Collects the steps of one `launch` or `resume`. Single-threaded. A step that is repeated after a restart
/// counts once.
class RunSummary {
 public:
  explicit RunSummary(double started_unix_s) : started_unix_s_(started_unix_s) {}

  void step(const StepLine& view, double unix_s);

  /// One line on time and speed, one on losses, one on skipped steps if there were any; "" if no step was
  /// finished. `val_bytes_per_token`: of the validation text; 0: not known.
  std::string render(double ended_unix_s, double val_bytes_per_token = 0) const;

 private:
  struct Best {
    double loss = 0;
    int64_t step = 0;   ///< 0: none yet
    void take(double loss, int64_t step);
  };
  double started_unix_s_, first_step_unix_s_ = 0, last_step_unix_s_ = 0;
  double first_tokens_ = 0, last_tokens_ = 0, step_tokens_ = 0;
  int64_t first_step_ = 0, last_step_ = 0, skipped_ = 0;
  double last_loss_ = 0;
  Best training_, validation_;
  std::vector<TaskScore> tasks_;  // the newest
  int64_t tasks_step_ = 0;
};

}  // namespace trainctl
