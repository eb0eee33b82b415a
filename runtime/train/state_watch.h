// StateWatch finds bits of the state that changed by themselves: it makes the digest of the state after a
// step, compares those of ranks that hold the same, and a loaded state with the digest that was recorded
// with it.
#pragma once
#include <cstdint>
#include <optional>

#include "parallel/state_digest.h"
#include "runtime/train/control/control.h"
#include "runtime/train/control/replica_dispute.h"
#include "runtime/train/rank_resources.h"
#include "runtime/train/step_update.h"

namespace trainctl {

class StateWatch {
 public:
  /// `rank` must outlive it. Loads its kernel, where a device loads any.
  ///   disputes   of earlier attempts, which are settled when their step is computed again
  StateWatch(RankResources& rank, Control& control, std::vector<ReplicaDispute> disputes,
             std::vector<NodeRanks> nodes);

  /// In the exchange of step + 1, before and after its wait for the stream: where the state after `step` was
  /// digested, it is digested again. Throws Error(kHardware) if its bits changed since.
  void before_sums(int64_t step) {
    if (read_of_ == step) digests_.read_resting_state();
  }
  void require_rested(int64_t step) const;
  /// Before the update of `step`. Decides whether the state after it is digested, the same on every rank:
  /// every so many steps (observability.state_digest_every_steps), and where the
  /// directory gets a checkpoint of it, with ZeRO-0 also a copy in memory.
  /// Enqueues the digests of compute copies, as the step used them: the update makes them again. Where loss
  /// or gradient norm are not finite, compares at once, before the step ends the run: collective, and
  /// throws as agreed().
  void before_update(int64_t step, int64_t last, const StepScalars& scalars);
  bool is_due() const { return is_due_; }
  void after_update() {
    if (is_due_) digests_.read_state();
  }
  /// The digest of the state after `step`. Collective, where one is due, when the stream has come to
  /// its end. Throws Error(kHardware) on a rank whose bits differ from those of most of its replicas, and
  /// on all of them where there is no majority, which becomes an event with the digests of each; on the
  /// others Error(kPeerLost), which names these ranks. Where the step of a dispute was computed again, an
  /// event says who was wrong.
  parallel::StateDigest agreed(int64_t step);
  /// Of a state that was loaded: its digest; nullopt: none is made. `recorded`: by the checkpoint, if it has
  /// one. Collective. Error(kCheckpoint): they differ.
  std::optional<parallel::StateDigest> require_recorded(const std::optional<parallel::StateDigest>& recorded,
                                                        int64_t step);

 private:
  bool is_due(int64_t step, int64_t last, const StepScalars& scalars) const;
  /// state_step: the step after which the state was digested; of the copies, it is `step`.
  parallel::StateDigest sum_of_replicas(int64_t step, int64_t state_step);
  [[noreturn]] void name_ranks(int64_t step, int64_t state_step);
  /// Of the part in dispute after `step`; null: there is none.
  const ReplicaDispute* dispute_of(int64_t step, const std::string& part) const;
  /// Returns whether the digests say something of it.
  bool settle_dispute(const ReplicaDispute& dispute, const std::vector<std::string>& recomputed);
  void settle_disputes(int64_t step);
  bool speaks_for(const parallel::Replica& replica) const;
  void report_dispute(const parallel::Disagreement& found, const std::vector<parallel::ReplicaOfRank>& all,
                      int64_t step);

  RankResources& rank_;
  Control& control_;
  const std::vector<ReplicaDispute> disputes_;
  const std::vector<NodeRanks> nodes_;
  parallel::StateDigests digests_;
  const int64_t every_steps_;
  bool is_due_ = false;
  int64_t read_of_ = -1;  ///< the newest step whose state was digested
};

/// What a rank says to its replicas' disagreement after `step`. Pure.
struct StateProblem {
  ErrorCode code;
  std::string text;
};
StateProblem state_problem(const parallel::Disagreement& found, int rank, int64_t step);

}  // namespace trainctl
