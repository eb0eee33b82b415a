// The memory of one rank by purpose, as the plan reports it.
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/sharding_plan.h"
#include "runtime/model/stage_model.h"
#include "runtime/plan/device_model.h"

namespace trainctl {

/// Bytes of the device, except where something else is said. Sums of a rank's arenas (RankPlan::regions).
struct RankMemory {
  parallel::MeshPosition at;
  parallel::ShardingBytes sharding;  ///< weights, gradients, optimizer state, communication
  StageBytes stage;                  ///< activations in flight, scratch
  size_t data = 0;                   ///< samples read ahead
  size_t workspace = 0;              ///< what ops and products need in addition to their arguments
  size_t nccl = 0;                   ///< NCCL's own buffers: an estimate (nccl_bytes_estimate)
  size_t saving = 0;                 ///< to write and to read checkpoints (CPU; on a GPU it is host memory)
  size_t trace = 0;                  ///< the ring of spans of traced steps (CPU; on a GPU it is host memory)
  size_t program = 0;                ///< the process itself with its libraries, before any of the above (CPU)
  /// Two slots, or one, in /dev/shm for copies of the state (ckpt/pieces.h): a job with checkpoint.memory =
  /// auto does without them where they do not fit.
  size_t copies = 0;
  bool copies_count = false;  ///< they are of the device's memory, and of the resident size of the rank (CPU)
  size_t pinned_host =
      0;  ///< for saving and loading (staging_bytes), and StageBytes::host; not in the total (GPU)
  /// A rank with copies saves from them, and reads its state before it has them.
  size_t saving_beside_copies() const { return copies_count && copies >= saving ? 0 : saving; }
  size_t without_copies() const {
    return sharding.total() + stage.activations + stage.scratch() + data + workspace + nccl +
           saving + trace + program;
  }
  size_t total() const {
    return without_copies() - saving + saving_beside_copies() + (copies_count ? copies : 0);
  }
};

/// What the plan of a rank is made from.
struct PlanBasis {
  const JobSpec& job;
  const DeviceModel& device;
  const ModelTables& tables;
};

/// How many spans of traced steps a rank keeps: those of about four steps, from 4096 to 65536.
size_t trace_spans(const BatchSpec& batch, const ParallelSpec& p, int64_t layers);

/// The memory that does not depend on the state that a rank holds.
///   batch       the rows of a batch that the stage reads
///   sequences   of the rank in a step
RankMemory memory_of_stage(const PlanBasis& basis, const StageBytes& stage, const BatchRows& batch,
                           int64_t sequences);
/// Adds the memory that depends on the state that the rank holds.
void add_state(RankMemory& m, const PlanBasis& basis, const parallel::ShardingBytes& sharding);

/// The memory of NCCL's connections on a rank's GPU, an estimate. tied: the embedding is the head, too.
size_t nccl_bytes_estimate(const ParallelSpec& parallelism, bool tied);

}  // namespace trainctl
