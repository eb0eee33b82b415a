// RankPlan: the memory, parameters and program of one rank, a pure function of the job, the device and the
// rank's position in the mesh. The trainer executes it, `plan` sums and prints it, the checker proves its
// program, the tally counts it, the generator runs its forward part. No other code derives these values from
// the job.
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/sharding_plan.h"
#include "runtime/model/stage_program.h"
#include "runtime/model/stage_uses.h"
#include "runtime/plan/rank_memory.h"

namespace trainctl {

/// The groups that a rank belongs to, and the edges of its pipeline.
struct RankGroups {
  parallel::PerAxis<parallel::MeshGroup> axes;
  parallel::MeshGroup experts,
      expert_data;          ///< parts of the data-parallel group, with whole experts of the tensor ranks
                            ///< of it; of one rank without experts
  bool gathers_apart = false;  ///< weights are gathered through groups of their own, during reductions
  bool tied_peer = false;   ///< another stage holds other uses of the embedding
  parallel::VirtualStages stages;
  /// And gradients the other way. In a V this holds of the first virtual stage, and the reverse of the
  /// second.
  bool activations_come = false, activations_go = false;
};
RankGroups rank_groups(const ParallelSpec& parallelism, bool shares_embedding,
                       const parallel::MeshPosition& at);

/// The part of a plan that needs no program: it may have a billion micro-batches.
struct RankParts {
  parallel::MeshPosition at;
  RankGroups groups;
  parallel::AxisLines lines;          ///< the groups along which parameters are shared
  StageUses uses;                     ///< parameters, and the sublayers and other parts of each virtual stage
  parallel::ShardingOptions sharding;
  BatchRows batch;        ///< what it reads of a batch
  int64_t sequences = 0;  ///< that it computes in a step
  int64_t counted_micro_batches = 0;  ///< StepCut::counted_micro_batches_of
};
RankParts rank_parts(const PlanBasis& basis, const parallel::MeshPosition& at);

/// One allocation of a rank.
struct MemoryRegion {
  std::string name;
  size_t bytes = 0;
  bool pinned_host = false;   ///< memory of the host, not part of RankMemory::total
};
/// All allocations of a rank. Their sums by purpose are RankMemory.
std::vector<MemoryRegion> memory_regions(const parallel::sharding::Layout& params, const RankMemory& memory);

struct RankPlan : RankParts {
  parallel::sharding::Layout params;   ///< where each parameter lies, what is owned here and what is saved
  StageProgram program;                ///< checked (parallel::step_problem)
  StageModel::Options model;
  kernels::ScratchShape scratch;       ///< the largest shapes of its ops
  size_t spans = 0;                    ///< of traced steps that are kept (trace_spans)
  RankMemory memory;
  std::vector<MemoryRegion> regions;
};
RankPlan make_rank_plan(const PlanBasis& basis, const parallel::MeshPosition& at);

/// What a model has that only computes forward, on one rank: weights alone, and of its activations one layer's.
struct ForwardPlan {
  StageUses uses;
  parallel::sharding::Layout params;
  StageModel::Options model;
};
/// `basis`: of one rank.
ForwardPlan make_forward_plan(const PlanBasis& basis);

}  // namespace trainctl
