#include "runtime/plan/stage_balance.h"

#include <algorithm>

#include "runtime/model/stage_layers.h"
#include "runtime/plan/plan.h"

namespace trainctl {
namespace {

/// Of each stage: the slowest rank of any replica holds up all.
std::vector<double> slowness_of(const JobSpec& job, const SlowShare& slow) {
  const parallel::MeshShape mesh = job.mesh();
  std::vector<double> slowness(size_t(job.parallelism.pipeline), 1);
  for (const int rank : slow.ranks)
    if (rank >= 0 && rank < mesh.world_size())
      slowness[size_t(parallel::position_of(mesh, rank).pp)] = 1 + slow.share;
  return slowness;
}

/// With an offload to the host: memory of both.
uint64_t most_memory(const JobSpec& job) {
  const DeviceKind kind = job.device == DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu;
  const JobPlan plan = make_plan(job, kind);
  uint64_t most = 0;
  for (const RankMemory& stage : plan.stages)
    most = std::max<uint64_t>(most, stage.total() + stage.sharding.state_host);
  return most;
}

}  // namespace

std::optional<StageBalance> balance_for(const ParsedJob& job, const SlowShare& slow, uint64_t room) {
  const ParallelSpec& p = job.job.parallelism;
  if (p.pipeline == 1 || slow.share <= 0) return std::nullopt;
  const ModelPlan model = model_plan(job.job.model, job.job.compute);
  const PartFlops costs = part_flops(model, job.job.data.seq_len);
  const std::vector<double> slowness = slowness_of(job.job, slow);
  const auto dearest = [&](const std::vector<int64_t>& layers) {
    const std::vector<double> of_stages = stage_costs(layers, p.stage_order(), costs, slowness);
    return *std::max_element(of_stages.begin(), of_stages.end());
  };
  const double now = dearest(stage_layers(model, p, job.job.data.seq_len));
  StageBalance balance{.layers = balanced_layers(costs, p.stage_order(), slowness)};
  balance.faster = 1 - dearest(balance.layers) / now;
  if (balance.faster < kLeastGain) return std::nullopt;
  const ParsedJob moved = parse_job({.text = job.resolved_json,
                                     .file = "job.json",
                                     .overrides = {stage_layers_setting(balance.layers)},
                                     .environment = {},
                                     .is_of_run = true});
  if (!moved.ok() || most_memory(moved.job) > std::max(room, most_memory(job.job))) return std::nullopt;
  return balance;
}

}  // namespace trainctl
