// The state of the training between two steps, except for its tensors, and how a checkpoint describes it.
#pragma once
#include <cmath>
#include <string>

#include "ckpt/checkpoint.h"
#include "runtime/train/bad_steps.h"
#include "runtime/train/rank.h"
#include "runtime/train/schedule.h"

namespace trainctl {

struct TrainingState {
  int64_t step = 0;    ///< completed steps
  DataPosition start;  ///< of the step that this process began with
  BadSteps bad_steps;
  double last_loss = NAN;  ///< of the last step that was not skipped
};

/// The description for a checkpoint. numerics: of the devices; data_fingerprints_json: a JSON list
/// (data::Dataset::fingerprints_json).
ckpt::StateInfo state_info(const TrainingState& state, const JobSpec& job, const RankOptions& options,
                           const std::string& numerics, const std::string& data_fingerprints_json);

/// Error(kCheckpoint): its moments in int8 have a scale for each block of a chunk, and this job has other
/// chunks.
void require_same_blocks(kernels::Moments moments, double chunk_mib, const ckpt::StateInfo& info);

/// The state that a checkpoint describes. new_data: the data begin at their start. Error(kCheckpoint) if it
/// does not say how far the run was in its data, and that is needed.
TrainingState training_state(const ckpt::StateInfo& info, bool new_data);

}  // namespace trainctl
