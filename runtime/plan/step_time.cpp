#include "runtime/plan/step_time.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/ops.h"
#include "runtime/model/stage_program.h"
#include "runtime/plan/step_tally.h"
#include "runtime/predict/collective_time.h"

namespace trainctl {
namespace {

using parallel::TrafficGroup;
using predict::ClusterModel;
using predict::GroupPlace;
using predict::TimeParts;

/// One computation of a micro-batch in a virtual stage, with the exchanges within it.
struct PhaseCost {
  TimeParts work;
  double tensor = 0, context = 0, experts = 0;
  double sum() const { return work.sum() + tensor + context + experts; }
  PhaseCost& operator+=(const PhaseCost& other) {
    work += other.work;
    tensor += other.tensor;
    context += other.context;
    experts += other.experts;
    return *this;
  }
};
struct VirtualStageCost {
  PhaseCost forward, backward_input, backward_weight;
  double edge_s = 0;  // of a message to the next stage
  double backward_s() const { return backward_input.sum() + backward_weight.sum(); }
};
struct StageCost {
  std::vector<VirtualStageCost> virtual_stages;
  TimeParts updates, moves;
};

/// How often this rank sends in a group to one of its peers: so many collectives follow one another.
double calls_in(const parallel::TrafficTally& traffic, TrafficGroup group, int ranks) {
  double messages = 0;
  for (const auto& [key, count] : traffic.messages)
    if (key.group == group && key.way == parallel::Way::send) messages += double(count);
  return ranks > 1 ? messages / (ranks - 1) : 0;
}

class StepTimer {
 public:
  StepTimer(const JobSpec& job, const DeviceModel& device, const ClusterModel& cluster)
      : job_(job), device_(device), cluster_(cluster), tables_(model_tables(job)) {
    // Tensor cores multiply f32 that is rounded to TF32 at half of the rate of bf16.
    if (job.tf32) cluster_.device.peak_f32_flops_per_s = cluster.device.peak_bf16_flops_per_s / 2;
    std::map<std::vector<VirtualStageClass>, size_t> known;
    for (int pp = 0; pp < job.parallelism.pipeline; ++pp) {
      const RankParts parts = rank_parts({job, device, tables_}, {.pp = pp});
      const auto [found, fresh] = known.try_emplace(parts.uses.stage_class(), costs_.size());
      if (fresh) costs_.push_back(cost_of(parts.at));
      stages_.push_back(found->second);
    }
  }

  const StageCost& stage(int pp) const { return costs_[stages_[size_t(pp)]]; }

  /// Past the micro-batches that fill the pipeline, each further round of them adds as much time and as much
  /// idle time.
  PredictedPasses passes() const {
    constexpr int64_t kMostSimulated = 1 << 17;
    const parallel::PipelineShape shape = pipeline_shape(job_, 0);
    const int round = shape.stages, all = shape.micro_batches;
    const int fewer = all % round + 4 * round, more = fewer + 2 * round;
    if (all <= more || int64_t(all) * shape.stages * shape.virtual_stages <= kMostSimulated)
      return simulated(all);
    const PredictedPasses first = simulated(fewer), second = simulated(more);
    const double times = double(all - fewer) / double(more - fewer);
    return {first.time_s + times * (second.time_s - first.time_s),
            first.idle_s + times * (second.idle_s - first.idle_s)};
  }

  /// The computations of all micro-batches in all stages, as a mean of the stages.
  PhaseCost mean_work() const {
    PhaseCost all;
    for (const size_t at : stages_)
      for (const VirtualStageCost& cost : costs_[at].virtual_stages)
        for (const PhaseCost* phase : {&cost.forward, &cost.backward_input, &cost.backward_weight})
          all += *phase;
    const double times = double(job_.micro_batches_of(0)) / double(stages_.size());
    return {times * all.work, times * all.tensor, times * all.context, times * all.experts};
  }

  double optimizer_s() const {
    double most = 0;
    const bool alone = job_.parallelism.ranks_of_parameters() == 1;
    for (const StageCost& cost : costs_)
      most = std::max(most, cost.updates.sum() + (alone ? cost.moves.sum() : 0));
    return most;
  }

  /// What the exchange over the data axis adds to a step whose passes take `passes_s`.
  double data_s(const JobPlan& plan, double passes_s) const;

 private:
  PredictedPasses simulated(int micro_batches) const {
    parallel::PipelineShape shape = pipeline_shape(job_, 0);
    shape.micro_batches = micro_batches;
    const auto at = [&](int stage, const parallel::Instruction& i) -> const VirtualStageCost& {
      return this->stage(stage).virtual_stages[size_t(i.virtual_stage)];
    };
    const auto cost = [&](int stage, const parallel::Instruction& i) {
      const VirtualStageCost& of = at(stage, i);
      return i.op == parallel::Op::forward          ? of.forward.sum()
             : i.op == parallel::Op::backward_input ? of.backward_input.sum()
                                                    : of.backward_weight.sum();
    };
    const auto transfer = [&](int stage, const parallel::Instruction& i) { return at(stage, i).edge_s; };
    const parallel::Timeline timeline =
        parallel::simulate(shape, pipeline_programs(shape, splits_backward(job_)), cost, transfer);
    return {timeline.makespan, timeline.makespan * shape.stages * timeline.bubble_fraction};
  }

  PhaseCost phase_cost(const StepTally& tally) const {
    const ParallelSpec& p = job_.parallelism;
    const parallel::TrafficTally& traffic = tally.traffic;
    const GroupPlace tensor = predict::place_of_group(cluster_, p.tensor, 1, device_.ranks_on_node),
                     context = predict::place_of_group(cluster_, p.context, p.tensor, device_.ranks_on_node),
                     experts = predict::place_of_group(cluster_, p.expert, p.ranks_of_expert(),
                                                       device_.ranks_on_node);
    PhaseCost cost{.work = predict::work_seconds(cluster_.device, tally.work, kind(cluster_.device.passes))};
    cost.tensor =
        predict::collective_seconds(cluster_, tensor, calls_in(traffic, TrafficGroup::tensor, p.tensor),
                                    traffic.sent(TrafficGroup::tensor));
    const double context_calls = calls_in(traffic, TrafficGroup::context, p.context),
                 context_bytes = traffic.sent(TrafficGroup::context);
    cost.context = p.exchanges_heads()
                       ? predict::all_to_all_seconds(cluster_, context, context_calls, context_bytes)
                       : predict::collective_seconds(cluster_, context, context_calls, context_bytes);
    cost.experts =
        predict::all_to_all_seconds(cluster_, experts, calls_in(traffic, TrafficGroup::experts, p.expert),
                                    traffic.sent(TrafficGroup::experts));
    return cost;
  }

  StageCost cost_of(const parallel::MeshPosition& at) const {
    const ParallelSpec& p = job_.parallelism;
    const auto tallies = tally_micro_batch_ops({job_, device_, tables_}, at);
    StageCost cost;
    for (const MicroBatchTally& tally : tallies) {
      VirtualStageCost of{phase_cost(tally.forward), phase_cost(tally.backward_input),
                          phase_cost(tally.backward_weight)};
      // Where the halves run together, the gradients of rows come once for both, and are half of what the
      // weight half exchanges apart.
      if (!splits_backward(job_)) of.backward_weight.experts /= 2;
      if (tally.edge_bytes > 0)
        of.edge_s = predict::message_seconds(cluster_, p.tensor * p.ranks_of_parameters(),
                                             device_.ranks_on_node, tally.edge_bytes);
      cost.virtual_stages.push_back(of);
    }
    // What fills and empties buckets runs on streams of its own, with the messages.
    kernels::WorkTally updates, moves;
    for (const auto& [shape, count] : tally_rest({job_, device_, tables_}, at, tallies).ops)
      (shape.op == kernels::Copy::kName || shape.op == kernels::TreeSum::kName ? moves : updates).ops[shape] =
          count;
    cost.updates = predict::work_seconds(cluster_.device, updates, kind(1));
    cost.moves = predict::work_seconds(cluster_.device, moves, kind(1));
    return cost;
  }

  predict::WorkKind kind(double passes) const {
    return {.f32 = job_.compute == DType::f32, .head_dim = double(job_.model.head_dim()), .passes = passes};
  }

  const JobSpec& job_;
  const DeviceModel& device_;
  ClusterModel cluster_;
  const ModelTables tables_;
  std::vector<StageCost> costs_;  // of each class of stages
  std::vector<size_t> stages_;    // the class of each stage
};

double StepTimer::data_s(const JobPlan& plan, double passes_s) const {
  const ParallelSpec& p = job_.parallelism;
  const double bytes = plan.traffic.data;
  if (p.ranks_of_parameters() == 1 || bytes == 0) return 0;
  const GroupPlace place =
      predict::place_of_group(cluster_, p.ranks_of_parameters(), p.tensor, device_.ranks_on_node);
  const double buckets = plan.buckets.halving + plan.buckets.direct;
  const double direct = p.reduction == GradientSums::exact && buckets > 0 ? plan.buckets.direct / buckets : 0;
  double all_s = (1 - direct) * predict::collective_seconds(cluster_, place, 2 * buckets, bytes) +
                 direct * predict::all_to_all_seconds(cluster_, place, 2 * buckets, bytes);
  all_s += stage(0).moves.sum();
  double forward_s = 0, backward_s = 0, parts = 2;
  for (const VirtualStageCost& cost : stage(0).virtual_stages) {
    forward_s += cost.forward.sum();
    backward_s += cost.backward_s();
  }
  for (const VirtualStageUses& uses : rank_parts({job_, device_, tables_}, {}).uses.virtual_stages)
    parts += double(uses.layers.size());
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
  return exposed + cluster_.overlap_slowdown * hidden;
}

}  // namespace

double StepParts::sum() const {
  return work.sum() + tensor + context + experts + bubble + data + optimizer + spread;
}

std::vector<NamedSeconds> named(const StepParts& parts) {
  return {{"products", parts.work.products},
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
}

PredictedPasses predict_passes(const JobSpec& job, const DeviceModel& device, const ClusterModel& cluster) {
  return StepTimer(job, device, cluster).passes();
}

StepTime predict_step(const JobSpec& job, const JobPlan& plan, const DeviceModel& device,
                      const ClusterModel& cluster, double sharing) {
  const StepTimer timer(job, device, cluster);
  const PredictedPasses passes = timer.passes();
  const PhaseCost work = timer.mean_work();
  const double stages = job.parallelism.pipeline, ranks = job.mesh().world_size();
  StepTime time;
  time.parts = {sharing * work.work, sharing * work.tensor, sharing * work.context, sharing * work.experts};
  const double busy_s = time.parts.sum(), alone_s = passes.time_s - passes.idle_s / stages;
  time.parts.bubble = std::max(0.0, passes.idle_s / stages - (busy_s - alone_s));
  time.bubble_fraction = busy_s > 0 ? time.parts.bubble / (busy_s + time.parts.bubble) : 0;
  time.parts.data = timer.data_s(plan, passes.time_s);
  time.parts.optimizer = sharing * timer.optimizer_s();
  // The expected slowest of so many normal variables is about sqrt(2 ln n) standard deviations off.
  time.parts.spread =
      cluster.device.spread * std::sqrt(2 * std::log(std::max(1.0, ranks))) * time.parts.sum();
  time.step_s = time.parts.sum();
  time.low_s = kBandLow * time.step_s;
  time.high_s = kBandHigh * time.step_s;
  return time;
}

}  // namespace trainctl
