#include "runtime/model/stage_program.h"

#include <algorithm>

#include "parallel/schedules.h"

namespace trainctl {

std::vector<MicroBatch> micro_batches(const JobSpec& job, int dp_rank) {
  const int per_lane = int(job.micro_batches_per_lane());
  std::vector<MicroBatch> result(size_t(job.micro_batches_of(dp_rank)));
  const int parts = job.parallelism.blocks_of_rank();
  for (int i = 0; i < int(result.size()); ++i)
    result[size_t(i)] = {i, i / per_lane * parts, i % per_lane == 0, i % per_lane == per_lane - 1,
                         i < job.counted_micro_batches_of(dp_rank)};
  return result;
}

parallel::PipelineShape pipeline_shape(const JobSpec& job, int dp_rank) {
  const ParallelSpec& p = job.parallelism;
  const parallel::ScheduleKind& kind = parallel::kind_of(p.schedule);
  const parallel::Schedule joined =
      kind.virtual_stages ? parallel::Schedule::interleaved : parallel::Schedule::one_f_one_b;
  const bool joins = kind.splits_backward && !kind.v_shaped && !splits_backward(job);
  return {joins ? joined : p.schedule, p.pipeline, p.virtual_stages, int(job.micro_batches_of(dp_rank))};
}

std::vector<parallel::Program> pipeline_programs(const parallel::PipelineShape& shape, bool splits_backward) {
  std::vector<parallel::Program> programs = parallel::make_programs(shape);
  if (splits_backward) return programs;
  for (parallel::Program& program : programs) parallel::join_halves(program);
  return programs;
}

StageProgram stage_program(const JobSpec& job, const parallel::MeshPosition& at, const StageUses& uses) {
  StageProgram p;
  p.shape = {.pipeline = pipeline_shape(job, at.dp),
             .stage = at.pp,
             .splits_backward = splits_backward(job),
             .reduced_together = job.parallelism.reduces_each_lane() ? int(job.micro_batches_per_lane()) : 0,
             .shares_gradients = sharding_options(job).shares_gradients,
             .gathers = job.parallelism.zero_stage > 0 && job.parallelism.ranks_of_parameters() > 1,
             .gathers_parts = shards_weights(job.parallelism),
             .shares_weights = sharding_options(job).shares_weights};
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages)
    p.shape.virtual_stages.push_back(virtual_stage.part_count());
  const parallel::Program schedule =
      pipeline_programs(p.shape.pipeline, p.shape.splits_backward)[size_t(at.pp)];
  p.slots = plan_slots(schedule, p.shape.pipeline.virtual_stages, p.shape.pipeline.micro_batches);
  p.actions = parallel::make_step_program(p.shape, schedule, p.slots);
  return p;
}

int evaluated_together(const JobSpec& job) {
  // Stages wait at the begin and the end of what they are given: little of so many micro-batches.
  int64_t count = int64_t(4) * job.parallelism.pipeline;
  for (int dp = 0; dp < job.parallelism.data; ++dp) count = std::min(count, job.micro_batches_of(dp));
  return int(count);
}

bool splits_backward(const JobSpec& job) {
  // With recomputation both halves run together: the recomputed activations are needed by both. So they do
  // where a rank has several context blocks: a gradient that waits is of one. Modules of multi-token
  // prediction keep no gradient that waits.
  return parallel::kind_of(job.parallelism.schedule).splits_backward && !job.recomputes_layers() &&
         job.parallelism.blocks_of_rank() == 1 && job.model.mtp.num_layers == 0;
}

}  // namespace trainctl
