#include "runtime/plan/rank_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "ckpt/chunk_stream.h"
#include "ckpt/pieces.h"
#include "runtime/model/stage_program.h"
#include "runtime/plan/rank_sizes.h"
#include "runtime/spans/recorder.h"

namespace trainctl {

// An estimate: an exchange is a span, and so is the wait for it; collectives over n ranks have log2(n) rounds
// each way.
size_t trace_spans(const BatchSpec& batch, const ParallelSpec& p, int64_t layers) {
  constexpr double kSteps = 4, kFewest = 4096, kMost = 65536;
  const auto rounds = [](int ranks) { return 2 * std::ceil(std::log2(double(ranks))); };
  const double micro_batches =
      std::ceil(double(batch.global_sequences) / double(batch.micro_sequences * p.data));
  const double parts = std::ceil(double(layers) / p.pipeline) + 3 * p.virtual_stages;
  const double reductions = p.reduces_each_lane() ? micro_batches : 1;
  const double messages = p.pipeline > 1 ? 4 * p.virtual_stages : 0;
  const double keys = p.context > 1 ? 3 * rounds(p.context) + 1 : 0;  // of a layer, with recomputation
  const double rows = p.expert > 1 ? 12 : 0;                          // likewise
  const double exchanges = micro_batches * (4 * parts * rounds(p.tensor) + parts * (keys + rows) + messages) +
                           2 * parts * reductions * rounds(p.ranks_of_parameters());
  const double actions = micro_batches * 12 * p.virtual_stages + 8 * parts * reductions;
  return std::bit_ceil(size_t(std::clamp(kSteps * (actions + 2 * exchanges), kFewest, kMost)));
}

RankMemory memory_of_stage(const PlanBasis& basis, const StageBytes& stage, const BatchRows& batch,
                           int64_t sequences) {
  const auto& [job, device, tables] = basis;
  RankMemory m;
  m.stage = stage;
  const int64_t seq_len = job.data.seq_len / job.parallelism.context;
  const size_t tokens = token_bytes(batch, sequences, seq_len);
  const size_t of_tasks =
      job.eval.tasks.empty()
          ? 0
          : token_bytes(task_rows(batch), evaluated_together(job) * job.batch.micro_sequences, seq_len);
  if (!device.is_host()) {
    // Samples read ahead are host memory there.
    m.data = tokens + of_tasks;
    if (uses_nccl(job)) m.nccl = nccl_bytes_estimate(job.parallelism, job.model.tie_embeddings);
    return m;
  }
  m.stage.activations += std::exchange(m.stage.host, 0);  // one memory
  if (m.stage.margins > 0)  // with those of one layer, own and another rank's, as they are exchanged
    m.stage.margins += 2 * size_t(job.model.moe.num_experts * kernels::kMarginBins) * sizeof(int32_t);
  m.trace = SpanRecorder::bytes(trace_spans(job.batch, job.parallelism, job.model.num_layers));
  if (!batch.empty())
    m.data = size_t(job.data.prefetch_batches + 2) * size_t(sequences * (job.data.seq_len + 1)) *
                 (4 * (batch.documents ? 2 : 1) + (job.data.reads_loss() ? 1 : 0)) +
             2 * tokens;
  if (batch.last && job.data.train.size() > 1)  // the losses of targets: StageModel::watch_losses
    m.data += size_t(sequences * seq_len) * sizeof(float);
  m.data += 2 * of_tasks;
  return m;
}

void add_state(RankMemory& m, const PlanBasis& basis, const parallel::ShardingBytes& sharding) {
  const auto& [job, device, tables] = basis;
  m.sharding = sharding;
  m.program = device.program_bytes(tables.params.params.size());
  m.workspace = device.workspace_bytes(tables, job.parallelism, sharding);
  // Of replicas, each saves its part: of experts that ranks share there are fewest.
  const ParallelSpec& p = job.parallelism;
  const size_t replicas = p.zero_stage == 0 ? size_t(p.ranks_of_experts() / p.expert) : 1;
  const size_t written = sharding.saved / replicas;
  if (job.checkpoint.memory != MemoryCopies::off)
    m.copies = ckpt::memory_for_pieces(written, size_t(sharding.saved_chunks) / replicas, 0, 0,
                                       job.checkpoint.memory == MemoryCopies::one ? 1 : 2);
  m.copies_count = device.is_host();
  if (!device.is_host()) {
    m.pinned_host = m.stage.host + sharding.state_host + staging_bytes(sharding.saved);
    return;
  }
  // Any job may begin from a checkpoint, of which a rank reads its whole state; what it saves is no more.
  static_assert(ckpt::kReaderBytes >= ckpt::kShardWriterBytes);
  m.saving = std::min(ckpt::kReaderBytes, sharding.saved);
}

// NCCL makes a connection for each peer and channel, and each receiving end on the same node keeps the
// buffers of all three protocols: Simple (NCCL_BUFFSIZE, 4 MiB), 8 x 512 x 8 x 16 bytes (LL) and 120 x 640
// x 8 x 8 bytes (LL128). Peers on other nodes share one such set for sends and one for receives. Source:
// p2pRecvSetup in NCCL's src/transport/p2p.cc, computeBuffSizes in src/init.cc, and its maintainer in
// github.com/NVIDIA/nccl issues 864 and 1450. Where GPUs are joined by NVLink, channels go up to the limit
// that we set (NcclSettings); by PCIe there are fewer, so that this is an upper estimate,
// not a measurement. A node is taken to have 8 GPUs. The world and a pipe have no NCCL communicator.
size_t nccl_bytes_estimate(const ParallelSpec& parallelism, bool tied) {
  const NcclSpec& nccl = parallelism.nccl;
  const size_t of_connection = size_t(nccl.buffer_kib) * 1024 + 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8;
  constexpr int kNode = 8;
  const parallel::MeshShape mesh = parallelism.mesh();
  if (mesh.world_size() == 1) return 0;
  size_t connections = 0;
  // A group of `members` ranks, `stride` apart in the order of ranks.
  const auto add = [&](int members, int stride, int channels) {
    const int here = std::min(members, std::max(1, kNode / stride));
    connections += size_t((here - 1) * channels + (members > here ? 2 * channels : 0));
  };
  add(mesh.tp, 1, nccl.blocks);
  add(mesh.cp, mesh.tp, nccl.blocks);
  const bool gathers_apart = shards_weights(parallelism);  // through connections of their own
  for (int group = 0; group < 1 + gathers_apart; ++group) add(mesh.cp * mesh.dp, mesh.tp, nccl.blocks);
  const int experts = parallelism.expert;
  if (experts > 1) {
    const int stride = parallelism.ranks_of_expert();
    add(experts, stride, nccl.blocks);
    for (int group = 0; group < 1 + gathers_apart; ++group)
      add(parallelism.ranks_of_experts() / experts, stride * experts, nccl.blocks);
  }
  // An edge of the pipeline is a pair, for each of two neighbours and both directions; see make_edges.
  const parallel::VirtualStages stages = parallelism.stage_order();
  const int edges = mesh.pp > 1 ? std::min(4, 2 * (mesh.pp - 1)) * (stages.v_shaped ? 2 : 1) : 0;
  for (int edge = 0; edge < edges; ++edge) add(2, mesh.tp * mesh.cp * mesh.dp, nccl.edge_blocks);
  if (tied && stages.last_stage() > 0) add(2, mesh.tp * mesh.cp * mesh.dp * (mesh.pp - 1), nccl.blocks);
  return connections * of_connection;
}

}  // namespace trainctl
