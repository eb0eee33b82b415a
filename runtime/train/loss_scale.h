// The factor of the loss of a run in f16. Gradients are made of the loss times this factor, so that small
// ones are not lost below the least f16; they are divided by it, in f32, where they are used. It is a power
// of two: what neither overflows nor underflows has the same bits under every factor.
//
// An overflow, seen in the gradient norm of the whole mesh, halves it and skips the step; after a number of
// steps without one it doubles. It depends on sums over the whole mesh and on what every checkpoint has, so
// it is the same on every rank and mesh and after a resume.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/spec/fields/job.h"
#include "runtime/train/bad_steps.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

struct LossScale {
  double value = 1;                ///< 1 in other formats than f16
  int64_t good_steps = 0;          ///< steps applied since it last changed or a step was skipped
  int64_t overflows_in_a_row = 0;  ///< steps skipped for it directly before the next one
  bool operator==(const LossScale&) const = default;
};

/// That of a run's first step.
LossScale first_loss_scale(const JobSpec& job);
/// That of a checkpoint's extra_json (ckpt::StateInfo), where both its run and the job are in f16; else as
/// for a first step.
LossScale loss_scale_of(const std::string& extra_json, const JobSpec& job);

/// Whether a step with these losses and gradient norm is skipped for the factor: all losses are finite, the
/// norm is not, and the factor can still fall. Otherwise the step is judged as in every format
/// (fate_of_step).
bool is_overflow(const StepLine& line, const LossScale& scale, const JobSpec& job);

LossScale after_overflow(LossScale scale, const LossScaleSpec& spec);
/// After a step with that fate that was no overflow.
LossScale after_step(LossScale scale, StepFate fate, const LossScaleSpec& spec);

/// Whether a gradient norm is not finite although the scale is at its floor.
bool is_at_floor(const StepLine& line, const LossScale& scale, const JobSpec& job);
/// What is said of it then, and what to do. param: the last one with such a gradient, which is made first.
std::string floor_text(const LossScaleSpec& spec, const std::string& param);

}  // namespace trainctl
