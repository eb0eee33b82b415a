// What varies in time, as pure functions of the step: the learning rate and the places of samples.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/model/stage_program.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// Learning rate of 0-based step `step`. Warmup: lr * (step + 1) / warmup. Then with t = (step - warmup) / (total - warmup):
/// constant lr; linear lr + (min_lr - lr) t; cosine min_lr + (lr - min_lr) (1 + cos(pi t)) / 2; wsd: lr until the last
/// decay_steps, then linear to min_lr.
double learning_rate(const ScheduleSpec& schedule, int64_t step);

/// By what a learning rate is multiplied where steps of `before` tokens become steps of `now` tokens. Linear:
/// now / before, square_root: its root, none: 1. Exactly 1 where both are equal.
double batch_lr_factor(BatchLrRule rule, int64_t before, int64_t now);

/// What of its data a run has seen before 0-based step `step`. Known from a checkpoint, so that a batch of another size or other data may
/// follow; from there on it is arithmetic on the step.
struct DataPosition {
  int64_t step = 0, samples = 0, tokens = 0;
  int64_t samples_at(const JobSpec& job, int64_t at_step) const;   ///< before that step; samples: of the data at hand
  int64_t tokens_at(const JobSpec& job, int64_t at_step) const;    ///< tokens: of all that the weights have seen
};

/// Global indices of the samples that data-parallel rank `dp` takes in a step whose first sample is `first`, in the order of its
/// micro-batches: the global batch is cut into lanes, a lane into micro-batches.
std::vector<uint64_t> sample_indices(const JobSpec& job, int64_t first, int dp);

}  // namespace trainctl
