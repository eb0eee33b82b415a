// Decides about a step whose loss or gradient norm is not finite: the step is skipped, or the run stops.
//
// A skipped step does not change parameters and optimizer state, and its samples are not used again. The
// decision depends only on sums over the whole mesh and on counts in every checkpoint, so it is the same on
// every rank and mesh and after a resume.
#pragma once
#include <cstdint>
#include <string>

namespace trainctl {

/// Steps skipped so far.
struct BadSteps {
  int64_t total = 0;      ///< in the run and its parents
  int64_t in_a_row = 0;   ///< directly before the next step; 0 after a step that was applied
  int64_t overflows = 0;  ///< of total: those skipped for a loss scale (loss_scale.h)
};

enum class StepFate { apply, skip, stop };

/// Decides about a step with this loss and gradient norm. `most_in_a_row`: fault_tolerance.skip_bad_steps.
StepFate fate_of_step(double loss, double grad_norm, const BadSteps& before, int64_t most_in_a_row);

/// The counts after a step with that fate.
BadSteps after_step(BadSteps before, StepFate fate);

/// "the loss is nan" or "the gradient norm is inf".
std::string what_is_bad(double loss, double grad_norm);

/// The counts in a checkpoint's extra_json (ckpt::StateInfo); zeros if it has none.
BadSteps bad_steps_of(const std::string& extra_json);

}  // namespace trainctl
