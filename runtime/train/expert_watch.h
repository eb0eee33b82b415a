// ExpertWatch counts how many tokens each expert got, over all steps, and gives the sums of all ranks where a
// record is due. One thread.
#pragma once
#include <vector>

#include "runtime/train/measure/expert_load.h"
#include "runtime/train/rank_resources.h"

namespace trainctl {

class ExpertWatch {
 public:
  /// Of a job with experts. `rank` must outlive it.
  explicit ExpertWatch(RankResources& rank);

  /// Adds the counts of a step, whose device work has ended.
  void count();
  /// What all ranks counted since the last call, the same on every rank, and how long each expert has had no
  /// token. Sends the numbers of all layers. Collective.
  ExpertSlots collect();

 private:
  void add_biases(std::vector<int64_t>& numbers) const;

  RankResources& rank_;
  const int64_t micro_batches_;
  ExpertSlots all_;                   // the numbers of layers; how long each expert has been quiet
  std::vector<size_t> own_layers_;    // of each layer of this rank: its place among all_.layers
  std::vector<int64_t> own_;          // [layers, experts] counted on this rank
  std::vector<int64_t> own_dropped_;  // [layers]; empty: no expert drops any
  bool has_biases_ = false;
};

}  // namespace trainctl
