// What a user can do after a run diverged: a command that branches from a checkpoint of before, with a lower learning rate.
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

/// The newest checkpoint that was saved before the losses left their course: its loss is finite, at most a quarter above the lowest
/// loss of any checkpoint, and at least 3 % below `first_loss`, the loss of the run's first step (NaN: not known): with less learned,
/// a new start costs nothing, and a model whose output has gone constant has that loss, too. Nothing where none is such.
std::optional<int64_t> branch_point(std::span<const SavedLoss> saved, double first_loss);

/// A learning rate to try after `lr` diverged: half of it, or 3e-4 where half would still be above 3e-3, the range in which AdamW
/// trains models of any size.
double lower_learning_rate(double lr);

/// The command: `trainctl launch RUN/job.json --from RUN@STEP -s schedule.lr=...`. Where no checkpoint
/// of the run is good: from the checkpoint that the run itself branched from, or without --from.
/// `run` names the run as the user can find it.
std::string divergence_advice(FileSystem& fs, const JobSpec& job, const RunDirectory& run);

}  // namespace trainctl
