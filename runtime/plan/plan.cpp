#include "runtime/plan/plan.h"

#include <algorithm>

#include "runtime/train/schedule.h"

namespace trainctl {
namespace {

/// Resident size of a rank process that has started MPI and opened its data but holds no model. Measured on Debian 12 with
/// OpenMPI 4.1.4; test/end_to_end/plan_test.cpp holds the whole plan to within a tenth.
constexpr size_t kProgramBytes = size_t(33) << 20;

RankMemory rank_memory(const JobSpec& job, const ParamTable& table, const ChunkGrids& grids,
                       const std::vector<parallel::Program>& programs, const parallel::MeshPosition& at,
                       const PackedBytes& packed_bytes) {
  RankMemory m;
  m.at = at;
  const StageUses uses = stage_uses(table, job, at);
  const bool end_stage = at.pp == 0 || at.pp == job.parallelism.pipeline - 1;
  m.sharding = parallel::ShardedParams::plan(uses.uses, grids.grids, sharding_options(job, at), job.parallelism.data, at.dp,
                                             table.tied && job.parallelism.pipeline > 1 && end_stage);
  const SlotPlan slots =
      plan_slots(programs[size_t(at.pp)], job.parallelism.virtual_stages, int(job.micro_batches_per_rank()));
  m.stage = StageModel::plan(job, uses, {slots.slots, splits_backward(job), 1.0f});
  const BlockShape s = block_shape(job);
  for (const ChunkUses& chunk : uses.chunks) {
    m.packed += chunk.blocks.size() *
                (packed_bytes(s.qkv_cols(), s.hidden, s.compute) + packed_bytes(s.hidden, s.heads * s.head_dim, s.compute) +
                 packed_bytes(s.up_cols(), s.hidden, s.compute) + packed_bytes(s.hidden, s.ffn, s.compute));
    if (chunk.last)
      m.packed += packed_bytes((job.model.vocab_size + job.parallelism.tensor - 1) / job.parallelism.tensor, s.hidden, s.compute);
  }
  if (end_stage)
    m.data = size_t(job.data.prefetch_batches + 2) *
             size_t(job.batch.global_sequences / job.parallelism.data * (job.data.seq_len + 1)) * 4;
  m.program = kProgramBytes;
  return m;
}

RankTraffic rank_traffic(const JobSpec& job, const RankMemory& worst, const JobPlan& plan) {
  const BlockShape s = block_shape(job);
  const double tp = job.parallelism.tensor, dp = job.parallelism.data, pp = job.parallelism.pipeline;
  const double activation = double(s.rows * s.hidden) * double(size_of(s.compute));
  const double layers = double(job.model.num_layers) / pp, micro = double(plan.micro_batches);
  RankTraffic t;
  t.tensor = 8 * layers * micro * activation * (tp - 1) / tp;
  if (job.parallelism.pipeline > 1)
    t.pipeline = 2 * micro * job.parallelism.virtual_stages * activation * double(s.local_rows) / double(s.rows);
  const double gradients = double(worst.sharding.gradients);
  t.data = (dp - 1) / dp * (gradients + double(worst.sharding.weights));
  return t;
}

}  // namespace

const RankMemory& JobPlan::worst() const {
  return *std::max_element(stages.begin(), stages.end(),
                           [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

JobPlan make_plan(const JobSpec& job, const PackedBytes& packed_bytes) {
  const ParamTable table = parameter_table(job.model, job.optimizer);
  const ChunkGrids grids = chunk_grids(table, job.checkpoint.chunk_mib);
  const parallel::PipelineShape shape = pipeline_shape(job);
  const std::vector<parallel::Program> programs = parallel::make_programs(shape);
  const FlopsPerToken flops = flops_per_token(job.model, job.data.seq_len);
  JobPlan plan;
  plan.parameters = table.total_count();
  plan.parameters_without_embedding = plan.parameters;
  for (const Param& p : table.params)
    if (p.role == ParamRole::embedding || p.role == ParamRole::position) plan.parameters_without_embedding -= p.count();
  plan.tokens_per_step = job.tokens_per_step();
  plan.micro_batches = job.micro_batches_per_rank();
  plan.flops_per_step_causal = flops.causal * double(plan.tokens_per_step);
  plan.flops_per_step_full = flops.full * double(plan.tokens_per_step);
  for (int pp = 0; pp < job.parallelism.pipeline; ++pp) {
    RankMemory worst;
    for (int tp = 0; tp < job.parallelism.tensor; ++tp)
      for (int dp = 0; dp < job.parallelism.data; ++dp) {
        RankMemory m = rank_memory(job, table, grids, programs, {tp, 0, dp, pp}, packed_bytes);
        if (m.total() > worst.total()) worst = m;
      }
    plan.stages.push_back(worst);
  }
  plan.traffic = rank_traffic(job, plan.worst(), plan);
  plan.bubble_fraction = parallel::simulate(shape, programs, {}).bubble_fraction;
  plan.checkpoint_bytes = size_t(plan.parameters) * 12;
  return plan;
}

std::string render_timeline(const JobSpec& job, int width) {
  const parallel::PipelineShape shape = pipeline_shape(job);
  const auto programs = parallel::make_programs(shape);
  return parallel::draw(shape, parallel::simulate(shape, programs, {}), width);
}

}  // namespace trainctl
