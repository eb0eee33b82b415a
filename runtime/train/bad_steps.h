// What happens to a step whose loss or gradient norm is not a finite number: it is skipped, or the run stops.
//
// A skipped step leaves parameters and optimizer state as they were; its samples are not used again. The decision depends on sums over
// the whole mesh and on counts that every checkpoint holds, so it is the same on every rank, on every mesh and after a resume.
#pragma once
#include <cstdint>
#include <string>

namespace trainctl {

/// Steps skipped so far.
struct BadSteps {
  int64_t total = 0;      ///< since the run was born, its parents included
  int64_t in_a_row = 0;   ///< up to the last step; 0 after a step that was applied
};

enum class StepFate { apply, skip, stop };

/// `loss` and `grad_norm` are the step's, `most_in_a_row` is fault_tolerance.skip_bad_steps.
StepFate fate_of_step(double loss, double grad_norm, const BadSteps& before, int64_t most_in_a_row);

/// The counts after a step with that fate.
BadSteps after_step(BadSteps before, StepFate fate);

/// "the loss is nan" or "the gradient norm is inf".
std::string what_is_bad(double loss, double grad_norm);

/// The counts in a checkpoint's description (ckpt::StateInfo::extra_json); zeros where it names none.
BadSteps bad_steps_of(const std::string& extra_json);

}  // namespace trainctl
