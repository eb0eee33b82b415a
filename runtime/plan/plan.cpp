#include "runtime/plan/plan.h"

#include <algorithm>
#include <bit>

#include "kernels/device.h"
#include "runtime/train/schedule.h"
#include "runtime/train/token_feed.h"

namespace trainctl {
namespace {

/// Resident size of a rank process that has started MPI and opened its data but holds no model. Measured on Debian 12 with
/// OpenMPI 4.1.4; test/end_to_end/plan_test.cpp holds the whole plan to within a tenth.
constexpr size_t kProgramBytes = size_t(33) << 20;

RankMemory rank_memory(const JobSpec& job, const ParamTable& table, const ChunkGrids& grids,
                       const std::vector<parallel::Program>& programs, const parallel::MeshPosition& at,
                       DeviceKind device) {
  RankMemory m;
  m.at = at;
  const StageUses uses = stage_uses(table, job, at);
  const bool end_stage = at.pp == 0 || at.pp == job.parallelism.pipeline - 1;
  parallel::ShardingOptions options = sharding_options(job, at);
  options.fast_reduction = nccl_adds_gradients(job, device);
  m.sharding = parallel::ShardedParams::plan(uses.uses, grids.grids, options, job.parallelism.data, at.dp,
                                             table.tied && job.parallelism.pipeline > 1 && end_stage);
  const SlotPlan slots =
      plan_slots(programs[size_t(at.pp)], job.parallelism.virtual_stages, int(job.micro_batches_per_rank()));
  m.stage = StageModel::plan(job, uses, {slots.slots, splits_backward(job), 1.0f});
  const int64_t own_sequences = job.batch.global_sequences / job.parallelism.data;
  if (device == DeviceKind::cuda) {
    // Samples read ahead and the sums of a step are host memory there.
    m.data = end_stage ? TokenFeed::device_bytes(own_sequences, job.data.seq_len) : 0;
    m.workspace = kernels::cuda_scratch_bytes(scratch_shape(job, int64_t(m.sharding.optimizer / 12), m.sharding.state_boxes)) + kernels::cuda_workspace_bytes();
    return m;
  }
  if (end_stage)
    m.data = size_t(job.data.prefetch_batches + 2) *
             size_t(own_sequences * (job.data.seq_len + 1)) * 4 +
             2 * TokenFeed::device_bytes(own_sequences, job.data.seq_len);
  // The vector of sums that a step exchanges: each chunk's gradient norm and each micro-batch's loss, from every rank of an axis.
  const int widest = std::max({job.parallelism.tensor, job.parallelism.data, job.parallelism.pipeline});
  m.scalars = size_t(grids.total + job.batch.global_sequences / job.batch.micro_sequences + 1) * 8 * size_t(widest + 1);
  m.program = kProgramBytes;
  return m;
}

/// What one rank sends to enter or leave a cut part once.
struct TensorHops {
  double enter = 0, leave = 0;
};
TensorHops tensor_hops(const JobSpec& job) {
  const BlockShape s = block_shape(job);
  const double tp = job.parallelism.tensor, bytes = double(s.rows * s.hidden) * double(size_of(s.compute));
  if (job.parallelism.tensor == 1) return {};
  if (job.parallelism.sequence_parallel) return {bytes * (tp - 1) / tp, bytes * (tp - 1) / tp};
  return {0, 2 * bytes * (tp - 1) / tp};
}

/// Bytes that a rank of one stage sends in a step.
RankTraffic rank_traffic(const JobSpec& job, const StageUses& uses, const parallel::Program& program, const RankMemory& m) {
  const BlockShape s = block_shape(job);
  const TensorHops hop = tensor_hops(job);
  const double micro = double(job.micro_batches_per_rank()), dp = job.parallelism.data, tp = job.parallelism.tensor;
  RankTraffic t;
  for (const ChunkUses& chunk : uses.chunks) {
    const double again = job.recompute == Recompute::full ? 1 : 0, norms = job.recompute != Recompute::none ? 2 : 0;
    double enters = double(chunk.blocks.size()) * (4 + norms), leaves = double(chunk.blocks.size()) * (4 + again);
    enters += (chunk.first ? 1 : 0) + (chunk.last ? 1 : 0);
    leaves += (chunk.first ? 1 : 0) + (chunk.last ? 1 : 0);
    t.tensor += micro * (enters * hop.enter + leaves * hop.leave);
    if (chunk.last) t.tensor += micro * (tp - 1) * double(s.rows) * 12;   // maxima and sums of the softmax
  }
  for (const parallel::Instruction& i : program)
    if (i.op == parallel::Op::send_activation || i.op == parallel::Op::send_gradient)
      t.pipeline += double(s.local_rows * s.hidden) * double(size_of(s.compute));
  const double levels = std::bit_width(unsigned(job.parallelism.lanes / job.parallelism.data));
  const double gradients = double(m.sharding.gradients) / levels;
  t.data = (dp - 1) / dp * (gradients + (job.parallelism.zero_stage == 0 ? gradients : double(m.sharding.weights)));
  return t;
}

}  // namespace

const RankMemory& JobPlan::worst() const {
  return *std::max_element(stages.begin(), stages.end(),
                           [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

JobPlan make_plan(const JobSpec& job, DeviceKind device) {
  const ParamTable table = parameter_table(job.model, job.optimizer);
  const ChunkGrids grids = chunk_grids(table, job.checkpoint.chunk_mib);
  const parallel::PipelineShape shape = pipeline_shape(job);
  const std::vector<parallel::Program> programs = pipeline_programs(job);
  const FlopsPerToken flops = flops_per_token(job.model, job.data.seq_len);
  JobPlan plan;
  plan.device = device;
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
        RankMemory m = rank_memory(job, table, grids, programs, {tp, 0, dp, pp}, device);
        if (m.total() > worst.total()) worst = m;
      }
    plan.stages.push_back(worst);
  }
  for (const RankMemory& m : plan.stages) {
    const RankTraffic t = rank_traffic(job, stage_uses(table, job, m.at), programs[size_t(m.at.pp)], m);
    if (t.total() > plan.traffic.total()) plan.traffic = t;
  }
  plan.bubble_fraction = parallel::simulate(shape, programs, {}).bubble_fraction;
  plan.checkpoint_bytes = size_t(plan.parameters) * 12;
  return plan;
}

std::string render_timeline(const JobSpec& job, int width) {
  const parallel::PipelineShape shape = pipeline_shape(job);
  const auto programs = pipeline_programs(job);
  return parallel::draw(shape, parallel::simulate(shape, programs, {}), width);
}

}  // namespace trainctl
