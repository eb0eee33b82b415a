// Evaluation: the mean loss over the first sequences of the validation set. The weights do not change.
#pragma once
#include "data/dataset.h"
#include "runtime/model/executor.h"
#include "runtime/train/rank_resources.h"

namespace trainctl {

/// The number of sequences that an evaluation reads of a set that holds `available`: a whole number of
/// micro-batches, the same on every mesh.
int64_t evaluated_sequences(const JobSpec& job, int64_t available);

/// Whether an evaluation follows step `step` (from 1), where there is validation data: after every so many
/// steps, and after the last of the run.
bool is_evaluated(const JobSpec& job, int64_t step);

/// Mean loss per token. Collective; the same value on every rank.
double evaluate(const JobSpec& job, data::Dataset& validation, RankResources& rank, Executor& executor,
                RankActivity& activity);

/// Error(kData) if the validation data do not have a micro-batch.
void check_validation_size(const data::Dataset& validation, const JobSpec& job);

}  // namespace trainctl
