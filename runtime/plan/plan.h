// The plan of a run, from the spec alone: memory per rank by purpose, traffic, FLOPs, pipeline bubble. The
// same functions size the arenas of a rank, so a rank allocates what the plan says.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline.h"
#include "runtime/model/stage_layers.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/step_tally.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// The buckets of gradients by the way in which they are exchanged.
struct BucketCounts {
  int halving = 0, direct = 0;
  double largest_direct_bytes = 0;  ///< on the wire
  /// What a rank sends of the direct ones, each once, beyond what it would send of them halved; 0 where a
  /// bucket cannot be halved.
  double more_bytes = 0;
};

struct JobPlan {
  DeviceKind device = DeviceKind::cpu;
  int traffic_stage = 0;  ///< of the rank that sends most
  int64_t parameters = 0, parameters_without_embedding = 0;
  int64_t active_parameters = 0;  ///< that a token meets: fewer than all where there are experts
  int64_t mtp_parameters = 0;     ///< of all: of modules of multi-token prediction
  int64_t tokens_per_step = 0, micro_batches = 0;
  double flops_per_step_causal = 0, flops_per_step_full = 0;
  std::vector<RankMemory> stages;  ///< worst rank of each stage
  std::vector<StageWork> work;     ///< of each stage
  RankTraffic traffic;             ///< of the rank that sends most
  double bubble_fraction = 0;      ///< mean idle share of a stage, from the simulated schedule
  size_t checkpoint_bytes = 0;
  size_t saved_bytes = 0;                    ///< of a checkpoint, by the rank that takes most memory
  std::vector<MemoryRegion> regions;         ///< what that rank takes
  BucketCounts buckets;                      ///< of that rank's group
  int classes = 0;                           ///< of stages; a step was counted for one rank of each
  const RankMemory& worst() const;
};

/// Makes the plan. Its memory is that of the device: on a GPU without CUDA's own context; on a CPU that of
/// the process. The time grows with the size of the model and the number of stages, not with the number of
/// ranks or micro-batches.
JobPlan make_plan(const JobSpec& job, const DeviceModel& device);
JobPlan make_plan(const JobSpec& job, DeviceKind device);   ///< of device_of_kind
JobPlan make_plan(const PlanBasis& basis);                  ///< with tables that are known

/// The memory of one rank. The plan has that of the worst rank of each stage.
RankMemory rank_memory(const JobSpec& job, DeviceKind device, const parallel::MeshPosition& at);
/// That, and the buckets of its group.
struct RankMeasure {
  RankMemory memory;
  BucketCounts buckets;
};
RankMeasure measure_rank(const PlanBasis& basis, const parallel::MeshPosition& at);

/// What each stage of the pipeline computes when, in the times of InstructionTimes.
struct PipelinePicture {
  parallel::PipelineShape shape;
  parallel::Timeline timeline;
  bool is_predicted = false;  ///< for the cluster of the device
};
/// The pipeline of data-parallel rank 0. `micro_batches`: so many of them instead of the step's.
PipelinePicture pipeline_picture(const JobSpec& job, const DeviceModel& device,
                                 std::optional<int> micro_batches = {});
/// That picture as text.
std::string render_timeline(const JobSpec& job, const DeviceModel& device, int width);

}  // namespace trainctl
