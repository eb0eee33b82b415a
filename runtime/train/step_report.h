// StepReporter sends the numbers of each step to the supervisor: every rank its own times, rank 0 the rest.
// So a rank sends a few hundred bytes, however many ranks there are.
#pragma once
#include <memory>
#include <optional>

#include "runtime/model/flops.h"
#include "runtime/train/control/control.h"
#include "runtime/train/measure/expert_load.h"
#include "runtime/train/measure/gpu_watch.h"
#include "runtime/train/measure/metrics.h"
#include "runtime/train/rank_resources.h"

namespace trainctl {

/// Of more ranks than these, not every logged step reports the times of ranks: over all steps, the supervisor
/// gets those of about so many ranks a step.
inline constexpr int kMostTimesAStep = 4096;

/// What is reported of step `step` (from 1; `last`: the run's last step).
struct ReportsDue {
  bool log = false;    ///< the console shows the step
  bool ranks = false;  ///< a line with the numbers of every rank, and one with those of every expert
  bool times = false;  ///< every rank sends its times
};
ReportsDue reports_due(const ObservabilitySpec& observability, int64_t step, int64_t last, int ranks);

class StepReporter {
 public:
  /// Finds the peak FLOP/s of the run's devices. Collective. The arguments must outlive it.
  StepReporter(const RankOptions& options, RankResources& rank, Control& control);

  /// Completes `line`, which has what the training knows of the step, and reports it. Waits for no other
  /// rank.
  ///   times  this rank's
  ///   last   the run's last step
  ///   slots  what the experts of all ranks got since the last record; nullopt: none is due
  void report(StepLine line, const RankTimes& times, int64_t last, const std::optional<ExpertSlots>& slots);

 private:
  RankTimes with_readings(RankTimes times) const;

  const ObservabilitySpec observability_;
  const int64_t tokens_per_step_;
  const RankOptions& options_;
  RankResources& rank_;
  Control& control_;
  const FlopsPerToken flops_;
  double peak_flops_per_s_;              // of all devices together; known to rank 0
  std::unique_ptr<GpuWatch> gpu_watch_;  // of a rank with a GPU
};

}  // namespace trainctl
