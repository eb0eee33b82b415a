// The end of a step: the sums over the mesh that decide about it, and the update of the parameters.
#pragma once
#include <array>
#include <cstddef>

#include "parallel/exact_sum.h"
#include "runtime/train/bad_steps.h"
#include "runtime/train/control/control.h"
#include "runtime/train/control/step_tracer.h"
#include "runtime/train/loss_scale.h"
#include "runtime/train/quantile_balance.h"
#include "runtime/train/rank_resources.h"
#include "runtime/train/save/save_calendar.h"
#include "runtime/train/save/saver.h"
#include "runtime/train/source_losses.h"
#include "runtime/train/state_info.h"
#include "runtime/train/target_counts.h"

namespace trainctl {

/// Equal on every rank.
struct StepScalars {
  StepLine line;        ///< has loss, grad_norm, staged_step and partner_step
  int64_t targets = 0;  ///< that count in the step; where they are weighed, the sum of their weights
  double of_tokens =
      1;  ///< tokens of the step over those: what is a mean over tokens times this is one over them
  double of_gradients = 1;  ///< of_tokens without the loss scale that is in the gradients
  bool stop = false;        ///< a stop was requested
  SavesUnderWay saves;  ///< of any rank
  SaveSet due;          ///< where to save after this step, as rank 0 decides
  TraceOffer trace;     ///< the orders to trace that ranks could begin
};

/// What this rank alone knows: SaveDecider::due, StepTracer::offered.
struct OwnScalars {
  SaveSet due;
  TraceOffer trace;
};

/// How evenly experts are used, as sums over layers and sequences.
struct ExpertUse {
  int64_t sequences = 0, experts = 0, slots = 0, largest = 0, idle = 0;
  int64_t dropped = 0;  ///< slots over an expert's capacity
  /// counts [rows, experts]: of a layer and a sequence each
  void count(const int32_t* counts, int64_t rows, int64_t experts_of_row);
  /// Of the same counts the slots over the capacity.
  void count_drops(const int32_t* counts, const StageModel::ExpertCounts& of, int64_t rows);
  void add(const ExpertUse& other) {
    dropped += other.dropped;
    sequences += other.sequences, experts += other.experts, slots += other.slots;
    largest += other.largest, idle += other.idle;
  }
  /// Means over layers and sequences: the most used expert's slots over the mean one's; the share without any.
  double load() const { return double(largest) / double(slots) * (double(experts) / double(sequences)); }
  double dropped_share() const { return double(dropped) / double(slots); }
  double idle_share() const { return double(idle) / double(experts); }
};

/// What ranks contribute to the StepScalars, as a value that is sent.
struct StepSums {
  ExactSum loss, squares;
  int64_t targets = 0;  // as of StepScalars
  ExpertUse experts;
  SaveSet due;  // not empty on rank 0 alone
  bool stop = false, not_copied = false;
  SavesUnderWay saves;
  std::array<bool, 2> second_not_copied{};  // of Saver::second_copies_begun
  TraceOffer trace;
  void add(const StepSums& other) {
    loss.add(other.loss);
    squares.add(other.squares);
    targets += other.targets;
    experts.add(other.experts);
    due.add(other.due);
    stop |= other.stop;
    saves.add(other.saves);
    not_copied |= other.not_copied;
    trace.add(other.trace);
    for (size_t i = 0; i < 2; ++i) second_not_copied[i] |= other.second_not_copied[i];
  }
};

/// The same of the losses of modules of multi-token prediction.
struct MtpSums {
  std::array<ExactSum, kMostMtpLayers> losses;
  void add(const MtpSums& other) {
    for (size_t i = 0; i < losses.size(); ++i) losses[i].add(other.losses[i]);
  }
};

/// The targets of a step by which modules of multi-token prediction divide their gradients; without them: none.
/// Collective, where not all targets count.
TargetCounts step_targets(RankResources& rank);

/// Ends the steps of a rank.
class StepEnd {
 public:
  /// The arguments must outlive it.
  StepEnd(RankResources& rank, Control& control, Saver& saver);

  /// Sums what every rank knows, without rounding, so that the mesh does not change the bits. Sends some
  /// 600 bytes in a number of messages that grows with the logarithm of the number of ranks. Waits for the
  /// end of the backward pass. Collective.
  ///   targets     of the whole step
  ///   loss_scale  of its gradients
  StepScalars exchange(const OwnScalars& own, const TargetCounts& targets, double loss_scale);
  /// Updates the parameters, or skips a step whose loss or gradient norm is not finite, or that has no target
  /// that counts; counts it in `state`, and makes the loss scale of the next step. Throws Error(kDiverged)
  /// after too many. The same on every rank; rank
  /// 0 sends the event "step_skipped".
  StepFate apply_or_skip(const StepScalars& scalars, TrainingState& state);

 private:
  StepFate decide(const StepScalars& scalars, TrainingState& state);
  /// Collective, where there are modules.
  std::vector<double> mtp_losses(const TargetCounts& targets) const;
  /// Why a step is bad, where its loss scale is at its floor; else "". Collective there.
  std::string at_floor(const StepLine& line, const TrainingState& state);
  void skip_overflow(TrainingState& state, const StepScalars& scalars);
  /// scale: that of the next step, where the step was skipped for it.
  void report_skip(const TrainingState& state, int64_t targets, const std::string& why,
                   std::optional<double> scale = std::nullopt);

  RankResources& rank_;
  Control& control_;
  Saver& saver_;
  const int64_t tokens_per_step_, skip_bad_steps_;
  const bool may_drop_;
  const kernels::BalanceStep balance_;
  QuantileBalance quantiles_;
  SourceLosses sources_;
  const OptimizerSpec optimizer_;
  const ScheduleSpec schedule_;
};

}  // namespace trainctl
