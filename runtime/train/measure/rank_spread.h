// What each rank says about one step, and the few numbers that a person needs of many ranks: the smallest,
// the median and the largest, and which ranks differ from those that do the same work. Pure.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/train/measure/node_ranks.h"

namespace trainctl {

/// What one rank says about one step: seconds (forward, backward and optimizer without waits for peers, which
/// are communication_s), the largest memory it has held, and how its GPU is (NaN: not known); exchanged as
/// doubles in this order. On a GPU forward, backward and optimizer are the host's time, which only enqueues
/// them; step_s is the device's, too. step_s runs from the end of the step before to the end of this one,
/// without evaluation and saving; its part before this step's own work is reporting_s.
struct RankTimes {
  double forward_s = 0, backward_s = 0, communication_s = 0, optimizer_s = 0, data_s = 0, reporting_s = 0,
         step_s = 0;
  double evaluation_s = 0,
         checkpoint_s = 0;  ///< after the step; the save reported is the one before this step
  double peak_bytes = 0;
  double temperature_c = NAN, power_w = NAN, sm_clock_mhz = NAN;
  /// Time in which this rank computed rather than waited.
  double compute_s() const { return step_s - communication_s - data_s - reporting_s; }
};

/// The ranks of one node (or of the run, where nodes are not known) of which one number differs from the
/// ranks that do the same work.
struct Outliers {
  std::string of;          ///< compute_s | peak_memory_bytes | temperature_c | sm_clock_mhz
  std::string node;        ///< "" where nodes are not known
  std::vector<int> ranks;  ///< the first kMostRanks of them
  int count = 0;           ///< how many there are
  int worst_rank = 0;
  double worst = 0, median = 0;  ///< median: of the stage of worst_rank
  static constexpr size_t kMostRanks = 8;
};

/// At most this many Outliers are reported; the one that differs most comes first.
inline constexpr size_t kMostOutliers = 8;

/// Ranks that compute longer, hold more memory, are hotter or are clocked lower than the median of their
/// pipeline stage: by 15 % at least, and by four times the scatter of all ranks (1.4826 times the median
/// absolute deviation). A stage of fewer than three ranks has none. `stages` are neighbouring ranks, the same
/// number in each; `nodes` in the order of their ranks, or none.
std::vector<Outliers> outliers_of(std::span<const RankTimes> ranks, int stages,
                                  std::span<const NodeRanks> nodes);

/// {"count":8, "compute_s":{"min":..,"min_rank":..,"median":..,"max":..,"max_rank":..,"max_node":..},
/// "wait_s":.., "peak_memory_bytes":.., "outliers":[..]}; the same size for any number of ranks. `ranks` is
/// not empty.
nlohmann::ordered_json spread_json(std::span<const RankTimes> ranks, int stages,
                                   std::span<const NodeRanks> nodes);
/// The same form of what the driver says about GPUs: temperature_c, power_w, sm_clock_mhz; null where no rank
/// has a GPU.
nlohmann::ordered_json gpu_spread_json(std::span<const RankTimes> ranks, std::span<const NodeRanks> nodes);

}  // namespace trainctl
