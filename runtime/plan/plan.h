// The plan of a run, from the spec alone: memory per rank by purpose, traffic, FLOPs, pipeline bubble. The
// same functions size the arenas of a rank, so a rank allocates what the plan says.
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/sharded_params.h"
#include "runtime/model/stage_model.h"
#include "runtime/plan/step_tally.h"
#include "runtime/spec/fields/job.h"
#include "runtime/machine/rank_device.h"

namespace trainctl {

struct RankMemory {
  parallel::MeshPosition at;
  parallel::ShardingBytes sharding;  ///< weights, gradients, optimizer state, communication
  StageBytes stage;                  ///< activations in flight, scratch
  size_t data = 0;                   ///< samples read ahead
  size_t scalars = 0;                ///< sums exchanged at the end of a step
  size_t workspace = 0;              ///< what ops and products need in addition to their arguments
  size_t nccl = 0;                   ///< NCCL's own buffers: an estimate (nccl_bytes_estimate)
  size_t saving = 0;                 ///< the buffer of checkpoints (CPU; on a GPU it is host memory)
  size_t program = 0;                ///< the process itself with its libraries, before any of the above (CPU)
  size_t pinned_host = 0;            ///< host memory for saving and loading, not in the total (GPU; staging_bytes)
  size_t total() const {
    return sharding.total() + stage.activations + stage.scratch() + data + scalars + workspace + nccl + saving +
           program;
  }
};

struct JobPlan {
  DeviceKind device = DeviceKind::cpu;
  int64_t parameters = 0, parameters_without_embedding = 0;
  int64_t tokens_per_step = 0, micro_batches = 0;
  double flops_per_step_causal = 0, flops_per_step_full = 0;
  std::vector<RankMemory> stages;  ///< worst rank of each stage
  RankTraffic traffic;             ///< of the rank that sends most
  double bubble_fraction = 0;      ///< mean idle share of a stage, from the simulated schedule
  size_t checkpoint_bytes = 0;
  const RankMemory& worst() const;
};

/// Memory is that of the device: on a GPU what the rank takes there in addition to CUDA's own context; on a CPU
/// the process's. Takes time with the size of the model and the number of stages, not with the number of ranks
/// or of micro-batches.
JobPlan make_plan(const JobSpec& job, DeviceKind device);

/// Memory of one rank, by itself; the plan holds the worst one of each stage.
RankMemory rank_memory(const JobSpec& job, DeviceKind device, const parallel::MeshPosition& at);

/// What NCCL takes on a rank's GPU for its connections; 0 where the job does not use it.
size_t nccl_bytes_estimate(const JobSpec& job);

/// The pipeline's timeline as text, one micro-batch's forward taking 1, backward 2 (input and weight halves
/// 1 each).
std::string render_timeline(const JobSpec& job, int width);

}  // namespace trainctl
