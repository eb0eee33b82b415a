// Values that depend on the step, as pure functions: the learning rate and the indices of samples.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/model/stage_program.h"
#include "runtime/spec/fields/job.h"
#include "runtime/train/control/remedies.h"

namespace trainctl {

/// Learning rate of 0-based step `step`. Warmup: lr * (step + 1) / warmup. Then with t = (step - warmup) /
/// (total - warmup): constant lr; linear lr + (min_lr - lr) t; cosine min_lr + (lr - min_lr) (1 + cos(pi t))
/// / 2; wsd: lr until the last decay_steps, then linear to min_lr.
double learning_rate(const ScheduleSpec& schedule, int64_t step);
/// The same with what was decided about it; the same bits where that is nothing.
double learning_rate(const ScheduleSpec& schedule, int64_t step, const Remedies& remedies);

/// The factor for the learning rate when the tokens per step change from `before` to `now`. linear: now /
/// before; square_root: its square root; none: 1. Exactly 1 if both are equal.
double batch_lr_factor(BatchLrRule rule, int64_t before, int64_t now);

/// The position in the data before 0-based step `step`, from a checkpoint. Later positions follow from the
/// step number, also if the batch size or the data have changed at the checkpoint.
struct DataPosition {
  int64_t step = 0, samples = 0, tokens = 0;
  /// Samples of the current data that were trained before that step. `batch`: of the steps since.
  int64_t samples_at(const BatchSpec& batch, int64_t at_step) const;
  /// All tokens seen by the weights before that step.
  int64_t tokens_at(int64_t tokens_per_step, int64_t at_step) const;
};

/// The global indices of the samples of data-parallel rank `dp` in a step whose first sample is `first`, in
/// the order of its micro-batches. The global batch is cut into lanes, a lane into micro-batches; a rank has
/// a run of lanes, or each dp-th one (ParallelSpec::reduces_each_lane), and where that ends one of the first
/// again, which does not count.
///   trained  where the samples that are trained lie in the order of the data
std::vector<uint64_t> sample_indices(const BatchSpec& batch, const ParallelSpec& p, int64_t first, int dp,
                                     const TrainedSamples& trained = {});

}  // namespace trainctl
