// Advice for a user whose run diverged: a command that branches from an earlier checkpoint with a lower
// learning rate.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// A checkpoint's step and the loss recorded with it.
struct SavedLoss {
  int64_t step = 0;
  double loss = 0;
};

/// The newest checkpoint from before the divergence; nullopt if there is none. Its loss is finite, at most
/// 1.25 times the lowest loss of all checkpoints, and at most 0.97 times `first_loss`. The last condition
/// excludes models that learned little, for which a new start costs nothing, and models whose output has
/// become constant.
///   first_loss   the loss of the run's first step; NaN: not known, then the last condition does not apply
std::optional<int64_t> branch_point(std::span<const SavedLoss> saved, double first_loss);

/// A learning rate to try after `lr` diverged: half of `lr`, but 3e-4 if half is above 3e-3, because AdamW
/// trains models of any size at 3e-4.
double lower_learning_rate(double lr);

/// The command `trainctl launch RUN/job.json --from RUN@STEP -s schedule.lr=...`. If branch_point finds no
/// checkpoint, the command begins from the checkpoint that the run itself branched from, or has no --from.
std::string divergence_advice(FileSystem& fs, const JobSpec& job, const RunDirectory& run);

}  // namespace trainctl
