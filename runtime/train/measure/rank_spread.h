// The numbers of each rank for one step, and their summary: the smallest, the median and the largest, and the
// ranks that differ from ranks with the same work. Pure.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/train/measure/node_ranks.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

/// The numbers of one rank for one step, sent as doubles in this order. Times are in seconds. forward_s,
/// backward_s and optimizer_s do not contain waits for peers; these are communication_s. On a GPU these three
/// are times of the host, which only enqueues the work; step_s also contains the time of the device. step_s
/// is the time from the end of the previous step to the end of this one, without evaluation and saving;
/// reporting_s is its part before the work of this step.
struct RankTimes {
  double forward_s = 0, backward_s = 0, communication_s = 0, optimizer_s = 0, data_s = 0, reporting_s = 0,
         step_s = 0;
  double evaluation_s = 0,
         checkpoint_s = 0;  ///< both after the step; checkpoint_s is of the save before this step
  double peak_bytes = 0;    ///< largest memory so far
  double temperature_c = NAN, power_w = NAN, sm_clock_mhz = NAN;  ///< of the GPU; NaN: not known
  /// Of communication_s, as Phases has them; NaN: the rank has no such peers.
  double experts_s = NAN, context_s = NAN;
  double pipeline_s = 0;  ///< of communication_s: waits for the neighbours in the pipeline
  /// The part of step_s in which this rank did not wait for peers, data or reporting.
  double compute_s() const { return step_s - communication_s - data_s - reporting_s; }

  /// Of a rank whose numbers did not come.
  static RankTimes none() {
    return {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
  }
  bool came() const { return !std::isnan(step_s); }
};

/// The largest number of reported Outliers. Those that differ most come first.
inline constexpr size_t kMostOutliers = 8;

/// The ranks that compute longer, hold more memory, are hotter or have a lower clock than the median of their
/// pipeline stage: by at least 15 %, and by at least four times the scatter of all ranks (1.4826 times the
/// median absolute deviation). A stage with fewer than three ranks has no outliers.
///   stages   number of stages; each has the same number of consecutive ranks
///   nodes    in the order of their ranks, or empty
std::vector<Outliers> outliers_of(std::span<const RankTimes> ranks, int stages,
                                  std::span<const NodeRanks> nodes);

/// Of ranks in any number; `ranks` is not empty. Those whose numbers did not come are not counted.
RankSpread rank_spread(std::span<const RankTimes> ranks, int stages, std::span<const NodeRanks> nodes);
/// Without a value if no rank has a GPU.
std::optional<GpuSpread> gpu_spread(std::span<const RankTimes> ranks, std::span<const NodeRanks> nodes);

}  // namespace trainctl
