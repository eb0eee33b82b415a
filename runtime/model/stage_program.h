// The program of one stage for a step: its micro-batches, the shape of the pipeline, its actions.
// Pure.
#pragma once
#include <vector>

#include "parallel/step_program.h"
#include "runtime/model/stage_model.h"

namespace trainctl {

/// The micro-batches of a data-parallel rank within a step (tokens and targets not set).
std::vector<MicroBatch> micro_batches(const StepCut& cut, int dp_rank);

using parallel::plan_posts;
using parallel::plan_slots;
using parallel::SlotPlan;

/// The shape of the pipeline of a data-parallel rank. Where layers are computed again, a schedule that splits
/// the halves of backward has nothing to put apart: zb-h1 runs as 1F1B, and a V keeps its order with both
/// halves together.
parallel::PipelineShape pipeline_shape(const StepCut& cut, int dp_rank);
/// The programs of its stages, for this shape or for one with another number of micro-batches. Where both
/// halves of backward run together, the gradient is sent after both.
std::vector<parallel::Program> pipeline_programs(const parallel::PipelineShape& shape, bool splits_backward);
/// The program of one stage for a step, and the memory of its pipeline.
struct StageProgram {
  parallel::StepShape shape;
  SlotPlan slots;
  parallel::StepProgram actions;
};
StageProgram stage_program(const StepCut& cut, const parallel::MeshPosition& at, const StageUses& uses);

/// How many micro-batches an evaluation gives a rank at a time (Executor::evaluate); the same on all ranks.
int evaluated_together(const StepCut& cut);

}  // namespace trainctl
