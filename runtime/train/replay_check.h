// ReplayCheck finds devices that compute wrongly: every so many steps, behind a step, all data-parallel
// replicas compute the same micro-batch, forward and backward, and compare digests of outputs, losses and
// gradients. The bits must be equal: kernels do not depend on the rank. The gradients go nowhere, and nothing
// that is trained changes.
//
// So all devices are checked at once, without a record of what a step computed. A mesh without replicas
// computes the micro-batch twice on each rank, which finds only what is wrong once. What follows from a
// difference: runtime/train/replay_verdict.h.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "data/dataset.h"
#include "runtime/model/executor.h"
#include "runtime/train/control/control.h"
#include "runtime/train/rank_resources.h"
#include "runtime/train/replay_verdict.h"
#include "runtime/train/state_info.h"

namespace trainctl {

/// The micro-batch that is computed again behind `step` (from 1): of which data-parallel position, and which
/// of its own that count. The same on every rank.
struct ReplayedMicroBatch {
  int dp = 0;
  int64_t index = 0;
};
ReplayedMicroBatch replayed_micro_batch(const JobSpec& job, int64_t step);

class ReplayCheck {
 public:
  /// All arguments must outlive this.
  ReplayCheck(RankResources& rank, Executor& executor, Control& control);

  /// Behind a step, with the state after it: where a check is due, computes a micro-batch of that step.
  /// Returns how many replicas agreed (1: each rank with itself); nullopt: none was due, or a rank was wrong
  /// once. Collective. Throws Error(kDevice) on a rank that computes wrongly, and Error(kHardware) on those
  /// of which one does; on the others Error(kPeerLost), which names these ranks.
  std::optional<int64_t> after_step(const TrainingState& state, const data::Dataset& dataset,
                                    const TargetCounts& targets, RankActivity& activity);

 private:
  void upload(const TrainingState& state, const data::Dataset& dataset);
  void compute(const MicroBatch& mb, int round);
  void digest(size_t first, std::span<const kernels::DigestBox> boxes);
  uint64_t sum_of(size_t first, size_t count) const;
  void take_digests(int round);
  bool is_any_different(bool both_rounds) const;
  std::set<int> failed_products(const ReplayVerdict& verdict);
  void answer(int64_t step);

  RankResources& rank_;
  Executor& executor_;
  Control& control_;
  const parallel::VirtualStages stages_;
  const int64_t every_steps_;
  /// Of a virtual stage: its output, the gradient of its input, and those of the uses of its parts.
  struct Place {
    size_t output = 0, input_gradient = 0, gradients = 0, end = 0;  ///< of numbers_
    std::vector<std::vector<kernels::DigestBox>> parts;
    std::vector<size_t> first_of_part;
  };
  std::vector<Place> places_;
  std::unique_ptr<kernels::Buffer> numbers_;  ///< host
  std::vector<uint64_t> seen_;                ///< as of ReplaySeen, of this rank
  std::vector<int> expert_groups_;            ///< as of ReplaySeen, of this rank
  std::set<int> wrong_before_;                ///< ranks that were wrong once, in this attempt
};

}  // namespace trainctl
