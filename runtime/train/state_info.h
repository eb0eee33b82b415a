// The state of the training between two steps, except for its tensors, and how a checkpoint describes it.
#pragma once
#include <cmath>
#include <optional>
#include <string>

#include "ckpt/checkpoint.h"
#include "parallel/state_digest.h"
#include "runtime/train/bad_steps.h"
#include "runtime/train/loss_scale.h"
#include "runtime/train/rank.h"
#include "runtime/train/schedule.h"

namespace trainctl {

struct TrainingState {
  int64_t step = 0;    ///< completed steps
  DataPosition start;  ///< of the step that this process began with
  BadSteps bad_steps;
  LossScale loss_scale;    ///< of the next step
  double last_loss = NAN;  ///< of the last step that was not skipped
  std::optional<parallel::StateDigest> digest;  ///< nullopt: none was made of this step's state
  Remedies remedies;       ///< samples that are never trained, steps with a lower learning rate
};

/// The description for a checkpoint. numerics: of the devices; data_fingerprints_json: a JSON list
/// (data::Dataset::fingerprints_json).
ckpt::StateInfo state_info(const TrainingState& state, const JobSpec& job, const RankOptions& options,
                           const std::string& numerics, const std::string& data_fingerprints_json);

/// The digest that a checkpoint has of its state; nullopt: it was saved without one.
std::optional<parallel::StateDigest> digest_of(const ckpt::StateInfo& info);

/// Error(kCheckpoint): its moments in int8 have a scale for each block of a chunk, and this job has other
/// chunks.
void require_same_blocks(kernels::Moments moments, double chunk_mib, const ckpt::StateInfo& info);

/// Of 0-based step `step` from now on: sample_indices of data-parallel rank `dp`.
std::vector<uint64_t> samples_of_step(const TrainingState& state, const BatchSpec& batch,
                                      const ParallelSpec& parallelism, int64_t step, int dp);
/// Fills in what the state after a step says of its line: step, tokens, sample, learning rate, skipped steps.
void put_state(const TrainingState& state, const BatchSpec& batch, int64_t seq_len,
               const ScheduleSpec& schedule, StepLine& line);

/// The state that a checkpoint describes, but for its loss scale (loss_scale_of). new_data: the data begin at
/// their start, and no sample of them was
/// skipped. `remedies`: of the run, in addition to those of the checkpoint. Error(kCheckpoint) if it
/// does not say how far the run was in its data, and that is needed.
TrainingState training_state(const ckpt::StateInfo& info, bool new_data, const Remedies& remedies = {});

}  // namespace trainctl
