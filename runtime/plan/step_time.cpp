#include "runtime/plan/step_time.h"

#include <algorithm>
#include <cmath>

#include "runtime/predict/collective_time.h"

namespace trainctl {
namespace {

using predict::ClusterModel;
using predict::GroupPlace;
using predict::TimeParts;

class StepTimer {
 public:
  StepTimer(const JobSpec& job, const DeviceModel& device, const ClusterModel& cluster)
      : job_(job), device_(device), times_(job, device, &cluster) {}

  const StageCost& stage(int pp) const { return times_.stage(pp); }
  PredictedPasses passes() const { return times_.passes(); }

  /// One kind of computation of all micro-batches in all stages, as a mean of the stages.
  PhaseCost mean_of(PhaseCost VirtualStageCost::*phase) const {
    PhaseCost all;
    const int stages = job_.parallelism.pipeline;
    for (int pp = 0; pp < stages; ++pp)
      for (const VirtualStageCost& cost : stage(pp).virtual_stages) all += cost.*phase;
    const double times = double(job_.micro_batches_of(0)) / double(stages);
    return {times * all.work, times * all.tensor, times * all.context, times * all.experts};
  }

  double optimizer_s() const {
    double most = 0;
    const bool alone = job_.parallelism.ranks_of_parameters() == 1;
    for (const StageCost& cost : times_.classes())
      most = std::max(most, cost.updates.sum() + (alone ? cost.moves.sum() : 0));
    return most;
  }

  /// What the exchange over the data axis adds to a step whose passes take `passes_s`.
  double data_s(const JobPlan& plan, double passes_s) const;

 private:
  const JobSpec& job_;
  const DeviceModel& device_;
  const InstructionTimes times_;
};

/// Of what a rank of a stage sends over the data axis, the share that goes to the ranks that have the same
/// experts. uses: of a rank of the stage.
double share_of_experts(const ModelTables& tables, const StageUses& uses, const ParallelSpec& p) {
  const auto sent = [](int ranks) { return double(ranks - 1) / ranks; };
  double experts = 0, others = 0;
  for (const parallel::ParamUse& use : uses.uses) {
    const Param& param = tables.params.params[size_t(use.param)];
    (param.expert >= 0 ? experts : others) += double(param.count());
  }
  // Of experts, a rank has its own alone.
  experts *= sent(p.ranks_of_experts() / p.expert) / p.ranks_of_expert();
  others *= sent(p.ranks_of_parameters()) / p.tensor;
  return experts > 0 ? experts / (experts + others) : 0;
}

double StepTimer::data_s(const JobPlan& plan, double passes_s) const {
  const ClusterModel& cluster = times_.cluster();
  const ParallelSpec& p = job_.parallelism;
  const double bytes = plan.traffic.data;
  if (p.ranks_of_parameters() == 1 || bytes == 0) return 0;
  const GroupPlace place =
      predict::place_of_group(cluster, p.ranks_of_parameters(), p.tensor, device_.ranks_on_node);
  // Ranks with the same experts are further apart: fewer of them are on a node and share its network cards.
  const GroupPlace apart = predict::place_of_group(cluster, p.ranks_of_experts() / p.expert,
                                                   p.ranks_of_expert() * p.expert, device_.ranks_on_node);
  const auto uses_of = [&](int pp) { return rank_parts({job_, device_, times_.tables()}, {.pp = pp}).uses; };
  const double of_experts = share_of_experts(times_.tables(), uses_of(plan.traffic_stage), p) * bytes;
  const double buckets = plan.buckets.halving + plan.buckets.direct;
  const double direct = p.reduction == GradientSums::exact && buckets > 0 ? plan.buckets.direct / buckets : 0;
  const auto exchange_s = [&](const GroupPlace& of, double calls, double sent) {
    return (1 - direct) * predict::collective_seconds(cluster, of, calls, sent) +
           direct * predict::all_to_all_seconds(cluster, of, calls, sent);
  };
  double all_s = exchange_s(place, 2 * buckets, bytes - of_experts) + exchange_s(apart, 0, of_experts);
  all_s += stage(0).moves.sum();
  double forward_s = 0, backward_s = 0, parts = 2;
  for (const VirtualStageCost& cost : stage(0).virtual_stages) {
    forward_s += cost.forward.sum();
    backward_s += cost.backward_s();
  }
  for (const VirtualStageUses& uses : uses_of(0).virtual_stages) parts += double(uses.layers.size());
  double exposed = 0;
  if (shards_weights(job_.parallelism)) {
    exposed = std::max(all_s / (parts * double(job_.micro_batches_of(0))), all_s - passes_s);
  } else {
    const double wire = double(size_of(p.reduction_dtype)), gathered = double(size_of(job_.compute));
    const double reduce_s = p.zero_stage == 0 ? all_s : all_s * wire / (wire + gathered);
    const double gather_s = all_s - reduce_s;
    const double window =
        job_.parallelism.reduces_each_lane() ? backward_s * double(job_.micro_batches_of(0)) : backward_s;
    exposed = std::max(reduce_s / parts, reduce_s - window);
    if (gather_s > 0) exposed += std::max(gather_s / parts, gather_s - forward_s);
  }
  const double hidden = std::max(0.0, all_s - exposed);
  return exposed + cluster.overlap_slowdown * hidden;
}

}  // namespace

double StepParts::sum() const {
  return work.sum() + tensor + context + experts + bubble + data + optimizer + disk + host_link + spread;
}

std::vector<NamedSeconds> named(const StepParts& parts) {
  std::vector<NamedSeconds> all = {{"products", parts.work.products},
                                   {"attention", parts.work.attention},
                                   {"other ops", parts.work.memory},
                                   {"host", parts.work.launches},
                                   {"tensor", parts.tensor},
                                   {"context", parts.context},
                                   {"experts", parts.experts},
                                   {"bubble", parts.bubble},
                                   {"data", parts.data},
                                   {"optimizer", parts.optimizer},
                                   {"spread", parts.spread}};
  if (parts.disk > 0) all.push_back({"disk", parts.disk});
  if (parts.host_link > 0) all.push_back({"host link", parts.host_link});
  return all;
}

std::optional<OffloadTime> offload_time(const JobSpec& job, const JobPlan& plan, const DeviceModel& device) {
  const parallel::ShardingBytes& worst = plan.worst().sharding;
  if (worst.state_host > 0)
    return OffloadTime{.bytes = double(worst.state_host) * job.launcher.ranks_per_gpu,
                       .bytes_per_s = kAssumedHostLinkBytesPerS,
                       .is_assumed = true};
  if (worst.state_file == 0) return std::nullopt;
  const int all = job.mesh().world_size();
  const int ranks = device.ranks_on_node > 0 ? std::min(device.ranks_on_node, all) : all;
  const double known = device.cluster ? device.cluster->disk_bytes_per_s : 0;
  return OffloadTime{.of_disk = true,
                     .bytes = double(worst.state_file) * ranks,
                     .bytes_per_s = known > 0 ? known : kAssumedDiskBytesPerS,
                     .is_assumed = known == 0};
}

StepTime predict_step(const JobSpec& job, const JobPlan& plan, const DeviceModel& device,
                      const ClusterModel& cluster, double sharing) {
  const StepTimer timer(job, device, cluster);
  const PredictedPasses passes = timer.passes();
  const PhaseCost forward = timer.mean_of(&VirtualStageCost::forward),
                  backward_input = timer.mean_of(&VirtualStageCost::backward_input),
                  backward_weight = timer.mean_of(&VirtualStageCost::backward_weight);
  PhaseCost work = forward;
  work += backward_input, work += backward_weight;
  const double stages = job.parallelism.pipeline, ranks = job.mesh().world_size();
  StepTime time{.forward_s = sharing * forward.work.sum(),
                .backward_input_s = sharing * backward_input.work.sum(),
                .backward_weight_s = sharing * backward_weight.work.sum()};
  time.parts = {sharing * work.work, sharing * work.tensor, sharing * work.context, sharing * work.experts};
  const double busy_s = time.parts.sum(), alone_s = passes.time_s - passes.idle_s / stages;
  time.parts.bubble = std::max(0.0, passes.idle_s / stages - (busy_s - alone_s));
  time.bubble_fraction = busy_s > 0 ? time.parts.bubble / (busy_s + time.parts.bubble) : 0;
  time.parts.data = timer.data_s(plan, passes.time_s);
  time.parts.optimizer = sharing * timer.optimizer_s();
  // One part is updated while others are read and written.
  if (const auto offload = offload_time(job, plan, device))
    (offload->of_disk ? time.parts.disk : time.parts.host_link) =
        std::max(0.0, offload->seconds() - time.parts.optimizer);
  // The expected slowest of so many normal variables is about sqrt(2 ln n) standard deviations off.
  time.parts.spread =
      cluster.device.spread * std::sqrt(2 * std::log(std::max(1.0, ranks))) * time.parts.sum();
  time.step_s = time.parts.sum();
  time.low_s = kBandLow * time.step_s;
  time.high_s = kBandHigh * time.step_s;
  return time;
}

}  // namespace trainctl
