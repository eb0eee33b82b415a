// Quantile balancing: the biases of experts become what would have given each its share of a step's tokens.
// During a step each rank counts margins (kernels::CountMargins); at its end the ranks of the data-parallel
// group add their histograms in integers, so that no mesh, lane or order changes them, and each computes the
// biases of its layers and sets those whose state it holds. Checkpoints have the biases alone.
//
// Source: Kimi K3's report, section 2.3.3 and appendix D; first https://kexue.fm/archives/11619.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/train/rank_resources.h"

namespace trainctl {

/// The biases behind a step. Of expert e the margin below which the fraction `share` of its margins lie,
/// linear within a bin, less the mean of all experts; in double. Empty: no token was counted.
///   counts   [E, kMarginBins]
///   least, most   the biases that the step had lie between them
std::vector<float> quantile_biases(std::span<const int32_t> counts, double share, float least, float most);

/// The work of one rank. One thread.
class QuantileBalance {
 public:
  /// For any job; without quantile balancing it does nothing. Clears what was counted. `rank` outlives it.
  explicit QuantileBalance(RankResources& rank);

  /// Sets the biases of the master weights from what the step has counted. Call it before
  /// ShardedParams::step, which makes the compute copies of them. Collective, waits for the stream.
  void update();
  /// What the step has counted does not count.
  void clear() { rank_.model->clear_margins(); }

 private:
  void set_bias(const Margins& margins, std::span<const float> bias);

  RankResources& rank_;
  const double share_;                      // k / E
  std::vector<int32_t> counts_, scratch_;   // [E, bins] of one layer
  std::vector<std::vector<float>> biases_;  // [layer] on their way to the device
};

}  // namespace trainctl
