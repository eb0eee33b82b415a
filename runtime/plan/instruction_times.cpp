#include "runtime/plan/instruction_times.h"

#include <algorithm>
#include <map>

#include "kernels/ops.h"
#include "runtime/model/stage_program.h"
#include "runtime/plan/pipeline_plan.h"
#include "runtime/predict/collective_time.h"

namespace trainctl {
namespace {

using parallel::TrafficGroup;
using predict::GroupPlace;

/// How often this rank sends in a group to one of its peers: so many collectives follow one another.
double calls_in(const parallel::TrafficTally& traffic, TrafficGroup group, int ranks) {
  double messages = 0;
  for (const auto& [key, count] : traffic.messages)
    if (key.group == group && key.way == parallel::Way::send) messages += double(count);
  return ranks > 1 ? messages / (ranks - 1) : 0;
}

}  // namespace

PhaseCost& PhaseCost::operator+=(const PhaseCost& other) {
  work += other.work;
  tensor += other.tensor;
  context += other.context;
  experts += other.experts;
  return *this;
}

InstructionTimes::InstructionTimes(const JobSpec& job, const DeviceModel& device,
                                   const predict::ClusterModel* cluster)
    : job_(job), device_(device), tables_(model_tables(job)) {
  if (cluster) {
    cluster_ = *cluster;
    cluster_->device.peak_f32_flops_per_s =
        predict::product_peak(cluster->device, true, job.tf32 && !device.is_host());
    const int ranks = device.ranks_on_node > 0 ? device.ranks_on_node : job.mesh().world_size();
    if (device.is_host()) cluster_->devices_of_node = std::max(cluster->devices_of_node, ranks);
  }
  std::map<std::vector<VirtualStageClass>, size_t> known;
  for (int pp = 0; pp < job.parallelism.pipeline; ++pp) {
    const RankParts parts = rank_parts({job, device, tables_}, {.pp = pp});
    const auto [found, fresh] = known.try_emplace(parts.uses.stage_class(), classes_.size());
    if (fresh) classes_.push_back(cluster_ ? cost_of(parts.at) : counted_cost_of(parts.at));
    stages_.push_back(found->second);
  }
}

double InstructionTimes::seconds(int stage, const parallel::Instruction& i) const {
  const VirtualStageCost& of = this->stage(stage).virtual_stages[size_t(i.virtual_stage)];
  return i.op == parallel::Op::forward          ? of.forward.sum()
         : i.op == parallel::Op::backward_input ? of.backward_input.sum()
                                                : of.backward_weight.sum();
}

double InstructionTimes::message_seconds(int stage, const parallel::Instruction& i) const {
  return this->stage(stage).virtual_stages[size_t(i.virtual_stage)].edge_s;
}

parallel::Timeline InstructionTimes::timeline(std::optional<int> micro_batches) const {
  parallel::PipelineShape shape = pipeline_shape(job_, 0);
  shape.micro_batches = micro_batches.value_or(shape.micro_batches);
  return parallel::simulate(
      shape, pipeline_programs(shape, StepCut(job_).splits_backward),
      [&](int stage, const parallel::Instruction& i) { return seconds(stage, i); },
      [&](int stage, const parallel::Instruction& i) { return message_seconds(stage, i); });
}

PredictedPasses InstructionTimes::simulated(int micro_batches) const {
  const parallel::Timeline timeline = this->timeline(micro_batches);
  return {timeline.makespan, timeline.makespan * job_.parallelism.pipeline * timeline.bubble_fraction};
}

PredictedPasses InstructionTimes::passes() const {
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

PhaseCost InstructionTimes::phase_cost(const StepTally& tally) const {
  const ParallelSpec& p = job_.parallelism;
  const parallel::TrafficTally& traffic = tally.traffic;
  const GroupPlace tensor = predict::place_of_group(*cluster_, p.tensor, 1, device_.ranks_on_node),
                   context = predict::place_of_group(*cluster_, p.context, p.tensor, device_.ranks_on_node),
                   experts = predict::place_of_group(*cluster_, p.expert, p.ranks_of_expert(), device_.ranks_on_node);
  PhaseCost cost{.work = predict::work_seconds(cluster_->device, tally.work, kind(cluster_->device.passes))};
  cost.tensor =
      predict::collective_seconds(*cluster_, tensor, calls_in(traffic, TrafficGroup::tensor, p.tensor),
                                  traffic.sent(TrafficGroup::tensor));
  const double context_calls = calls_in(traffic, TrafficGroup::context, p.context),
               context_bytes = traffic.sent(TrafficGroup::context);
  cost.context = p.exchanges_heads()
                     ? predict::all_to_all_seconds(*cluster_, context, context_calls, context_bytes)
                     : predict::collective_seconds(*cluster_, context, context_calls, context_bytes);
  cost.experts =
      predict::all_to_all_seconds(*cluster_, experts, calls_in(traffic, TrafficGroup::experts, p.expert),
                                  traffic.sent(TrafficGroup::experts));
  return cost;
}

StageCost InstructionTimes::cost_of(const parallel::MeshPosition& at) const {
  const ParallelSpec& p = job_.parallelism;
  const auto tallies = tally_micro_batch_ops({job_, device_, tables_}, at);
  StageCost cost;
  for (const MicroBatchTally& tally : tallies) {
    VirtualStageCost of{phase_cost(tally.forward), phase_cost(tally.backward_input),
                        phase_cost(tally.backward_weight)};
    // Where the halves run together, the gradients of rows come once for both, and are half of what the
    // weight half exchanges apart.
    if (!StepCut(job_).splits_backward) of.backward_weight.experts /= 2;
    if (tally.edge_bytes > 0)
      of.edge_s = predict::message_seconds(*cluster_, p.tensor * p.ranks_of_parameters(),
                                           device_.ranks_on_node, tally.edge_bytes);
    cost.virtual_stages.push_back(of);
  }
  // What fills and empties buckets runs on streams of its own, with the messages.
  kernels::WorkTally updates, moves;
  for (const auto& [shape, count] : tally_rest({job_, device_, tables_}, at, tallies).ops)
    (shape.op == kernels::Copy::kName || shape.op == kernels::TreeSum::kName ? moves : updates).ops[shape] =
        count;
  cost.updates = predict::work_seconds(cluster_->device, updates, kind(1));
  cost.moves = predict::work_seconds(cluster_->device, moves, kind(1));
  return cost;
}

StageCost InstructionTimes::counted_cost_of(const parallel::MeshPosition& at) const {
  const double flops_per_s = device_.flops_per_s > 0 ? device_.flops_per_s : 1;
  const bool with_messages = device_.flops_per_s > 0 && device_.link_bytes_per_s > 0;
  const auto phase = [&](const StepTally& tally) {
    return PhaseCost{.work = {.products = tally.work.flops() / flops_per_s}};
  };
  StageCost cost;
  for (const MicroBatchTally& tally : tally_micro_batch_ops({job_, device_, tables_}, at))
    cost.virtual_stages.push_back({phase(tally.forward), phase(tally.backward_input),
                                   phase(tally.backward_weight),
                                   with_messages ? tally.edge_bytes / device_.link_bytes_per_s : 0});
  return cost;
}

predict::WorkKind InstructionTimes::kind(double passes) const {
  return {.f32 = job_.compute == DType::f32,
          .head_dim = double(job_.model.head_dim()),
          .passes = passes,
          .fp8_head_rows = job_.fp8.exists() ? job_.model.vocab_size / job_.parallelism.tensor : 0,
          .fp8_head_columns = job_.model.hidden_size,
          .experts = std::max<int64_t>(1, job_.model.moe.num_experts / job_.parallelism.expert)};
}

}  // namespace trainctl
