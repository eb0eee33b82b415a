#include "runtime/train/schedule.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl {

double learning_rate(const ScheduleSpec& s, int64_t step) {
  if (step < s.warmup_steps) return s.lr * double(step + 1) / double(s.warmup_steps);
  const double t = std::min(1.0, double(step - s.warmup_steps) / double(std::max<int64_t>(1, s.total_steps - s.warmup_steps)));
  switch (s.type) {
    case LrSchedule::constant: return s.lr;
    case LrSchedule::linear: return s.lr + (s.min_lr - s.lr) * t;
    case LrSchedule::cosine: return s.min_lr + 0.5 * (s.lr - s.min_lr) * (1 + std::cos(3.141592653589793 * t));
    case LrSchedule::wsd: {
      const int64_t start = s.total_steps - s.decay_steps;
      if (step < start || s.decay_steps == 0) return s.lr;
      return s.lr + (s.min_lr - s.lr) * std::min(1.0, double(step - start + 1) / double(s.decay_steps));
    }
  }
  return s.lr;
}

int64_t DataPosition::samples_at(const JobSpec& job, int64_t at_step) const {
  return samples + (at_step - step) * job.batch.global_sequences;
}

int64_t DataPosition::tokens_at(const JobSpec& job, int64_t at_step) const {
  return tokens + (at_step - step) * job.tokens_per_step();
}

std::vector<uint64_t> sample_indices(const JobSpec& job, int64_t first, int dp) {
  const uint64_t per_rank = uint64_t(job.batch.global_sequences) / uint64_t(job.parallelism.data);
  std::vector<uint64_t> indices(per_rank);
  for (uint64_t i = 0; i < per_rank; ++i) indices[i] = uint64_t(first) + uint64_t(dp) * per_rank + i;
  return indices;
}

std::vector<MicroBatch> micro_batches(const JobSpec& job) {
  const int per_lane = int(job.micro_batches_per_lane());
  std::vector<MicroBatch> result(size_t(job.micro_batches_per_rank()));
  for (int i = 0; i < int(result.size()); ++i)
    result[size_t(i)] = {i, i / per_lane, i % per_lane == 0, i % per_lane == per_lane - 1};
  return result;
}

parallel::PipelineShape pipeline_shape(const JobSpec& job) {
  const bool joined = job.parallelism.schedule == parallel::Schedule::zb_h1 && !splits_backward(job);
  return {joined ? parallel::Schedule::one_f_one_b : job.parallelism.schedule, job.parallelism.pipeline, job.parallelism.virtual_stages,
          int(job.micro_batches_per_rank())};
}

std::vector<parallel::Program> pipeline_programs(const JobSpec& job) { return pipeline_programs(job, pipeline_shape(job)); }

std::vector<parallel::Program> pipeline_programs(const JobSpec& job, const parallel::PipelineShape& shape) {
  std::vector<parallel::Program> programs = parallel::make_programs(shape);
  if (splits_backward(job)) return programs;
  for (parallel::Program& program : programs) parallel::join_halves(program);
  return programs;
}

StageProgram stage_program(const JobSpec& job, int stage, const StageUses& uses) {
  StageProgram p;
  p.shape = {.pipeline = pipeline_shape(job), .stage = stage, .splits_backward = splits_backward(job),
             .gathers = job.parallelism.zero_stage > 0 && job.parallelism.data > 1};
  for (const ChunkUses& chunk : uses.chunks) p.shape.chunks.push_back(chunk.part_count());
  const parallel::Program schedule = pipeline_programs(job)[size_t(stage)];
  p.slots = plan_slots(schedule, p.shape.pipeline.virtual_stages, p.shape.pipeline.micro_batches);
  p.actions = parallel::make_step_program(p.shape, schedule, p.slots);
  return p;
}

bool splits_backward(const JobSpec& job) {
  // With recomputation both halves run together: the recomputed activations are needed by both.
  return job.parallelism.schedule == parallel::Schedule::zb_h1 && job.recompute != Recompute::full;
}

}  // namespace trainctl
