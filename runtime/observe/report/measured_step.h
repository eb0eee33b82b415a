// A step as the lines of a run's metrics.jsonl have it, for a comparison with the predicted one
// (runtime/plan/against.h). Pure.
#pragma once
#include <vector>

#include "runtime/plan/against.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl::report {

/// Of the lines that have the times of all ranks, without skipped steps and, if there are others, without the
/// first kWarmUpSteps, in which shapes and buffers are made. MeasuredStep::steps is 0 if there is no line.
///   attempt   0: of all attempts, else of this one
MeasuredStep measured_step(const std::vector<StepLine>& lines, uint64_t attempt);
inline constexpr int64_t kWarmUpSteps = 2;

}  // namespace trainctl::report
