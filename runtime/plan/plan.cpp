#include "runtime/plan/plan.h"

#include <algorithm>

#include "kernels/device.h"
#include "parallel/sharding_plan.h"
#include "runtime/base/error.h"
#include "runtime/model/flops.h"
#include "runtime/plan/pipeline_plan.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/rank_sizes.h"
#include "runtime/model/stage_program.h"

namespace trainctl {
namespace {

/// Resident size of a rank's process that has started MPI and touched its libraries, before any tensor is
/// there. Measured on Debian 12 with OpenMPI 4.1.4 and oneDNN 2.6; test/end_to_end/plan_test.cpp holds
/// whole runs to within 5 % of the plan.
constexpr size_t kProgramBytes = size_t(31) << 20;
/// The buffer through which a rank writes its part of a checkpoint (kWriteBytes of ckpt/write.cpp).
constexpr size_t kSaveBytes = size_t(4) << 20;

/// What oneDNN packs the panels of a product into, in each thread: up to 512 rows and 384 columns
/// (kernels/cpu/product.cpp) of a depth that it cuts at 384. The heap keeps two and a half times that,
/// because panels of several sizes take turns (measured, as above).
size_t product_bytes(const JobSpec& job) {
  const LayerShape s = layer_shape(job);
  const int64_t depth = std::min<int64_t>(384, std::max({s.hidden, s.ffn, s.rows}));
  const int64_t lines =
      std::min<int64_t>(512, s.rows) + std::min<int64_t>(384, std::max(s.up_cols(), s.hidden));
  return size_t(depth * lines) * size_of(s.compute) * 5 / 2 * size_t(job.parallelism.threads_per_rank);
}

/// What the ranks of a job are planned from.
struct Model {
  const JobSpec& job;
  const ParamTable table = parameter_table(job.model, job.optimizer);
  const ChunkGrids grids = chunk_grids(table, job.checkpoint.chunk_mib);
};

bool is_end_stage(const JobSpec& job, int stage) {
  return stage == 0 || stage == job.parallelism.pipeline - 1;
}

/// What all ranks of a stage take alike.
RankMemory stage_memory(const Model& model, const StageUses& uses, int stage, const std::vector<int>& slots,
                        DeviceKind device) {
  const JobSpec& job = model.job;
  RankMemory m;
  m.stage = StageModel::plan(job, uses, {slots, splits_backward(job), 1.0f});
  const int64_t own_sequences = job.batch.global_sequences / job.parallelism.data;
  const bool reads_tokens = is_end_stage(job, stage);
  if (device == DeviceKind::cuda) {
    // Samples read ahead and the sums of a step are host memory there.
    m.data = reads_tokens ? token_bytes(own_sequences, job.data.seq_len) : 0;
    m.nccl = nccl_bytes_estimate(job);
    return m;
  }
  if (reads_tokens)
    m.data = size_t(job.data.prefetch_batches + 2) * size_t(own_sequences * (job.data.seq_len + 1)) * 4 +
             2 * token_bytes(own_sequences, job.data.seq_len);
  // The vector of sums that a step exchanges: each chunk's gradient norm and each micro-batch's loss, from
  // every rank of an axis.
  const int widest = std::max({job.parallelism.tensor, job.parallelism.data, job.parallelism.pipeline});
  m.scalars = size_t(model.grids.total + job.batch.global_sequences / job.batch.micro_sequences + 1) * 8 *
              size_t(widest + 1);
  kernels::ScratchShape shape = scratch_shape(job, 0, 0);
  shape.widest = job.model.hidden_size;  // of a norm; biases need no memory of their own here
  m.workspace = kernels::cpu_scratch_bytes(shape, job.parallelism.threads_per_rank) + product_bytes(job);
  m.program = kProgramBytes;
  return m;
}

/// Fills in what depends on the state that the rank holds.
void set_sharding(RankMemory& m, const JobSpec& job, DeviceKind device,
                  const parallel::ShardingBytes& sharding) {
  m.sharding = sharding;
  if (device == DeviceKind::cuda) {
    m.workspace = kernels::cuda_scratch_bytes(
                      scratch_shape(job, int64_t(sharding.optimizer / 12), sharding.state_boxes)) +
                  kernels::cuda_workspace_bytes();
    m.pinned_host = staging_bytes(sharding.optimizer);
    return;
  }
  const bool saves = job.checkpoint.every_steps > 0 || job.checkpoint.on_exit;
  const size_t written =
      sharding.optimizer / (job.parallelism.zero_stage == 0 ? size_t(job.parallelism.data) : 1);
  m.saving = saves ? std::min(kSaveBytes, written) : 0;
}

/// The ranks of one stage and tensor position that differ, each with the first data-parallel rank that
/// takes so much.
std::vector<RankMemory> classes_of(const Model& model, RankParts parts, const RankMemory& of_stage, int tp,
                                   DeviceKind device) {
  const JobSpec& job = model.job;
  parts.sharding.tp_rank = tp;
  parts.sharding.fast_reduction = nccl_adds_gradients(job, device);
  std::vector<RankMemory> result;
  for (const auto& ranks : parallel::sharding::rank_classes(parts.uses.uses, model.grids.grids, parts.sharding,
                                                            job.parallelism.data, parts.tied_peer)) {
    RankMemory m = of_stage;
    m.at = {tp, 0, ranks.first_rank, parts.at.pp};
    set_sharding(m, job, device, ranks.bytes);
    result.push_back(m);
  }
  return result;
}

}  // namespace

// NCCL makes a connection for each peer and channel, and each receiving end on the same node keeps the
// buffers of all three protocols: 4 MiB (Simple, NCCL_BUFFSIZE), 8 x 512 x 8 x 16 bytes (LL) and 120 x 640
// x 8 x 8 bytes (LL128). Peers on other nodes share one such set for sends and one for receives. Source:
// p2pRecvSetup in NCCL's src/transport/p2p.cc, computeBuffSizes in src/init.cc, and its maintainer in
// github.com/NVIDIA/nccl issues 864 and 1450. Where GPUs are joined by NVLink, channels go up to the limit
// that we set (parallel/nccl_communicator.cpp); by PCIe there are fewer, so that this is an upper estimate,
// not a measurement. A node is taken to have 8 GPUs. The world and a pipe have no NCCL communicator.
size_t nccl_bytes_estimate(const JobSpec& job) {
  constexpr size_t kConnection = (size_t(4) << 20) + 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8;
  constexpr int kBulkChannels = 16, kEdgeChannels = 4, kNode = 8;
  const parallel::MeshShape mesh = job.mesh();
  if (mesh.world_size() == 1 || !uses_nccl(job)) return 0;
  size_t connections = 0;
  // A group of `members` ranks, `stride` apart in the order of ranks.
  const auto add = [&](int members, int stride, int channels) {
    const int here = std::min(members, std::max(1, kNode / stride));
    connections += size_t((here - 1) * channels + (members > here ? 2 * channels : 0));
  };
  add(mesh.tp, 1, kBulkChannels);
  add(mesh.dp, mesh.tp, kBulkChannels);
  // An edge of the pipeline is a pair, for each of two neighbours and both directions; see make_edges.
  const int edges = mesh.pp > 1 ? std::min(4, 2 * (mesh.pp - 1)) : 0;
  for (int edge = 0; edge < edges; ++edge) add(2, mesh.tp * mesh.dp, kEdgeChannels);
  if (job.model.tie_embeddings && mesh.pp > 1) add(2, mesh.tp * mesh.dp * (mesh.pp - 1), kBulkChannels);
  return connections * kConnection;
}

const RankMemory& JobPlan::worst() const {
  return *std::max_element(stages.begin(), stages.end(),
                           [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

RankMemory rank_memory(const JobSpec& job, DeviceKind device, const parallel::MeshPosition& at) {
  const Model model{job};
  RankParts parts = rank_parts(job, model.table, at);
  RankMemory m = stage_memory(model, parts.uses, at.pp, plan_pipeline(job).slots[size_t(at.pp)], device);
  m.at = at;
  parts.sharding.fast_reduction = nccl_adds_gradients(job, device);
  set_sharding(m, job, device,
               parallel::ShardedParams::plan(parts.uses.uses, model.grids.grids, parts.sharding,
                                             job.parallelism.data, at.dp, parts.tied_peer));
  return m;
}

JobPlan make_plan(const JobSpec& job, DeviceKind device) {
  const Model model{job};
  const PipelinePlan pipeline = plan_pipeline(job);
  const FlopsPerToken flops = flops_per_token(job.model, job.data.seq_len);
  JobPlan plan;
  plan.device = device;
  plan.parameters = model.table.total_count();
  plan.parameters_without_embedding = plan.parameters;
  for (const Param& p : model.table.params)
    if (p.role == ParamRole::embedding || p.role == ParamRole::position)
      plan.parameters_without_embedding -= p.count();
  plan.tokens_per_step = job.tokens_per_step();
  plan.micro_batches = job.micro_batches_per_rank();
  plan.flops_per_step_causal = flops.causal * double(plan.tokens_per_step);
  plan.flops_per_step_full = flops.full * double(plan.tokens_per_step);
  for (int stage = 0; stage < job.parallelism.pipeline; ++stage) {
    const RankParts parts = rank_parts(job, model.table, {.pp = stage});
    const RankMemory of_stage = stage_memory(model, parts.uses, stage, pipeline.slots[size_t(stage)], device);
    RankMemory worst;
    for (int tp = 0; tp < job.parallelism.tensor; ++tp)
      for (const RankMemory& m : classes_of(model, parts, of_stage, tp, device))
        if (m.total() > worst.total()) worst = m;
    plan.stages.push_back(worst);
    const RankTraffic t =
        rank_traffic(job, model.table, model.grids, worst.at, nccl_adds_gradients(job, device));
    if (t.total() > plan.traffic.total()) plan.traffic = t;
  }
  plan.bubble_fraction = pipeline.bubble_fraction;
  plan.checkpoint_bytes = size_t(plan.parameters) * 12;
  return plan;
}

std::string render_timeline(const JobSpec& job, int width) {
  const parallel::PipelineShape shape = pipeline_shape(job);
  constexpr int64_t kMostDrawn = 1 << 20;
  if (int64_t(shape.micro_batches) * shape.stages * shape.virtual_stages > kMostDrawn)
    throw Error(
        ErrorCode::kPlan,
        fmt::format(
            "a timeline of {} micro-batches on {} stages cannot be drawn; draw one of fewer, such as -s "
            "batch.global_sequences={}",
            shape.micro_batches, shape.stages,
            4 * shape.stages * job.parallelism.lanes * job.batch.micro_sequences));
  const auto programs = pipeline_programs(job);
  return parallel::draw(shape, parallel::simulate(shape, programs, {}), width);
}

}  // namespace trainctl
