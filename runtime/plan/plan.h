// What a run will need, from the spec alone: memory per rank by purpose, traffic, FLOPs, pipeline bubble. The same functions size
// the arenas that a rank takes, so that the plan is what is allocated.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/sharded_params.h"
#include "runtime/model/stage_model.h"
#include "runtime/spec/job.h"

namespace trainctl {

struct RankMemory {
  parallel::MeshPosition at;
  parallel::ShardingBytes sharding;    ///< weights, gradients, optimizer state, communication
  size_t packed = 0;                   ///< weights in the form the device multiplies by
  StageBytes stage;                    ///< activations in flight, scratch
  size_t data = 0;                     ///< samples read ahead
  size_t scalars = 0;                  ///< sums exchanged at the end of a step
  size_t program = 0;                  ///< the process itself with its libraries, before any of the above
  size_t total() const { return sharding.total() + packed + stage.activations + stage.scratch + data + scalars + program; }
};

/// Bytes that one rank sends in one step.
struct RankTraffic {
  double tensor = 0, pipeline = 0, data = 0;
  double total() const { return tensor + pipeline + data; }
};

struct JobPlan {
  int64_t parameters = 0, parameters_without_embedding = 0;
  int64_t tokens_per_step = 0, micro_batches = 0;
  double flops_per_step_causal = 0, flops_per_step_full = 0;
  std::vector<RankMemory> stages;      ///< worst rank of each stage
  RankTraffic traffic;                 ///< of the rank that sends most
  double bubble_fraction = 0;          ///< mean idle share of a stage, from the simulated schedule
  size_t checkpoint_bytes = 0;
  const RankMemory& worst() const;
};

/// Bytes of a packed [n, k] weight; depends on the device.
using PackedBytes = std::function<size_t(int64_t n, int64_t k, DType dtype)>;

JobPlan make_plan(const JobSpec& job, const PackedBytes& packed_bytes);

/// What this machine's CPU backend takes for a packed weight, and the FLOP/s of one rank of `job` measured here (0.2 s).
PackedBytes cpu_packed_bytes();
double measure_rank_flops_per_s(const JobSpec& job);

/// The plan for people, in the layout of `trainctl plan`, and as JSON. flops_per_s: peak of one rank, 0 if not measured.
std::string render_plan(const JobSpec& job, const JobPlan& plan, double rank_flops_per_s, bool color);
std::string plan_json(const JobSpec& job, const JobPlan& plan, double rank_flops_per_s);

/// The pipeline's timeline as text, one micro-batch's forward taking 1, backward 2 (input and weight halves 1 each).
std::string render_timeline(const JobSpec& job, int width);

}  // namespace trainctl
