#include "runtime/model/stage_program.h"

#include <algorithm>

#include "parallel/schedules.h"

namespace trainctl {

std::vector<MicroBatch> micro_batches(const StepCut& cut, int dp_rank) {
  const int per_lane = int(cut.micro_batches_per_lane);
  std::vector<MicroBatch> result(size_t(cut.micro_batches_of(dp_rank)));
  const int parts = cut.parallelism.blocks_of_rank();
  const ParallelSpec& p = cut.parallelism;
  for (int i = 0; i < int(result.size()); ++i) {
    result[size_t(i)] = {i, i / per_lane * parts, i % per_lane == 0, i % per_lane == per_lane - 1,
                         i < cut.counted_micro_batches_of(dp_rank)};
    result[size_t(i)].rows = {.number = uint32_t(i % per_lane),
                              .lane = p.lane_of(dp_rank, i / per_lane),
                              .next = p.reduces_each_lane() ? 1 : p.lanes / p.data};
  }
  return result;
}

parallel::PipelineShape pipeline_shape(const StepCut& cut, int dp_rank) {
  const ParallelSpec& p = cut.parallelism;
  const parallel::ScheduleKind& kind = parallel::kind_of(p.schedule);
  const parallel::Schedule joined =
      kind.virtual_stages ? parallel::Schedule::interleaved : parallel::Schedule::one_f_one_b;
  const bool joins = kind.splits_backward && !kind.v_shaped && !cut.splits_backward;
  return {joins ? joined : p.schedule, p.pipeline, p.virtual_stages, int(cut.micro_batches_of(dp_rank))};
}

std::vector<parallel::Program> pipeline_programs(const parallel::PipelineShape& shape, bool splits_backward) {
  std::vector<parallel::Program> programs = parallel::make_programs(shape);
  if (splits_backward) return programs;
  for (parallel::Program& program : programs) parallel::join_halves(program);
  return programs;
}

StageProgram stage_program(const StepCut& cut, const parallel::MeshPosition& at, const StageUses& uses) {
  const ParallelSpec& parallelism = cut.parallelism;
  StageProgram p;
  p.shape = {.pipeline = pipeline_shape(cut, at.dp),
             .stage = at.pp,
             .splits_backward = cut.splits_backward,
             .reduced_together = parallelism.reduces_each_lane() ? int(cut.micro_batches_per_lane) : 0,
             .early_receives = parallelism.early_receives,
             .shares_gradients = cut.shares_gradients(),
             .gathers = parallelism.zero_stage > 0 && parallelism.ranks_of_parameters() > 1,
             .gathers_parts = shards_weights(parallelism),
             .shares_weights = cut.shares_weights()};
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages)
    p.shape.virtual_stages.push_back(virtual_stage.part_count());
  const parallel::Program schedule =
      pipeline_programs(p.shape.pipeline, p.shape.splits_backward)[size_t(at.pp)];
  p.slots = plan_slots(schedule, p.shape.pipeline.virtual_stages, p.shape.pipeline.micro_batches);
  p.actions = parallel::make_step_program(p.shape, schedule, p.slots);
  return p;
}

int evaluated_together(const StepCut& cut) {
  // Stages wait at the begin and the end of what they are given: little of so many micro-batches.
  int64_t count = int64_t(4) * cut.parallelism.pipeline;
  for (int dp = 0; dp < cut.parallelism.data; ++dp) count = std::min(count, cut.micro_batches_of(dp));
  return int(count);
}

}  // namespace trainctl
