#include "runtime/plan/step_tally.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "parallel/schedules.h"
#include "runtime/base/error.h"
#include "runtime/model/executor.h"
#include "runtime/plan/rank_plan.h"

namespace trainctl {
namespace {

using parallel::Axis;
using parallel::TrafficGroup;

/// The communicators of one rank, with nobody at the other ends.
struct TallyMesh {
  parallel::PerAxis<std::unique_ptr<parallel::Communicator>> axes;
  std::unique_ptr<parallel::Communicator> tied;
  PipelineEdges edges;
  std::unique_ptr<parallel::Communicator> experts, expert_data;
  parallel::AxisGroups groups() const {
    parallel::AxisGroups groups(axes, tied.get());
    if (expert_data) groups.add(parallel::axes::expert_data, *expert_data, true);
    return groups;
  }
  StagePeers peers() const { return {axes[Axis::cp].get(), experts.get()}; }

  TallyMesh(const RankGroups& groups, bool adds, parallel::TrafficTally& traffic) {
    const auto pair = [&](TrafficGroup of, bool second) {
      return parallel::make_tally_communicator(of, second ? 1 : 0, 2, traffic);
    };
    for (const parallel::AxisRow& row : parallel::kAxes)
      if (const parallel::MeshGroup& g = groups.axes[row.axis];
          row.shared || (row.is_within_next && g.size > 1))
        axes[row.axis] = parallel::make_tally_communicator(parallel::traffic_of(row.axis), g.rank, g.size,
                                                           traffic, row.has_lanes && adds);
    if (groups.experts.size > 1) {
      experts = parallel::make_tally_communicator(TrafficGroup::experts, groups.experts.rank,
                                                  groups.experts.size, traffic);
      expert_data = parallel::make_tally_communicator(TrafficGroup::data, groups.expert_data.rank,
                                                      groups.expert_data.size, traffic, adds);
    }
    if (groups.tied_peer) tied = pair(TrafficGroup::tied_embedding, groups.axes[Axis::pp].rank > 0);
    const auto make = [&](PipelineEdges& of, bool come, bool go) {
      if (come) {
        of.activation_in = pair(TrafficGroup::activations, true);
        of.gradient_out = pair(TrafficGroup::gradients, false);
      }
      if (go) {
        of.activation_out = pair(TrafficGroup::activations, false);
        of.gradient_in = pair(TrafficGroup::gradients, true);
      }
    };
    make(edges, groups.activations_come, groups.activations_go);
    if (!groups.stages.v_shaped) return;
    edges.back = std::make_unique<PipelineEdges>();
    make(*edges.back, groups.activations_go, groups.activations_come);
  }
};

/// The job with the fewest lanes that make the same products and messages. Where data divides lanes, every
/// rank brings one sum, however many lanes it has.
JobSpec with_fewest_lanes(JobSpec job) {
  if (job.parallelism.lanes % job.parallelism.data == 0) job.parallelism.lanes = job.parallelism.data;
  return job;
}

JobSpec with_micro_batches(JobSpec job, int64_t per_lane) {
  job.batch.global_sequences = per_lane * job.parallelism.lanes * job.batch.micro_sequences;
  return job;
}

/// With so many lanes a rank.
JobSpec with_lanes(JobSpec job, int64_t of_rank) {
  const int64_t per_lane = job.micro_batches_per_lane();
  job.parallelism.lanes = of_rank * job.parallelism.data;
  return with_micro_batches(std::move(job), per_lane);
}

RankTraffic traffic_of(const StepTally& t) {
  const auto sent = [&](TrafficGroup group) { return t.traffic.sent(group); };
  return {
      sent(TrafficGroup::tensor),
      sent(TrafficGroup::activations) + sent(TrafficGroup::gradients) + sent(TrafficGroup::tied_embedding),
      sent(TrafficGroup::data), sent(TrafficGroup::context), sent(TrafficGroup::experts)};
}

}  // namespace

StepTally tally_step(const PlanBasis& basis, const parallel::MeshPosition& at, bool messages) {
  const auto& [job, device, tables] = basis;
  StepTally tally;
  tally.traffic.detailed = messages;
  const auto backend = kernels::make_tally_backend(tally.work);
  const auto stream = backend->create_stream();
  RankPlan plan = make_rank_plan(basis, at);
  const TallyMesh mesh(plan.groups, device.adds_gradients, tally.traffic);
  parallel::TensorParallel tp(*mesh.axes[Axis::tp], *backend, *stream, job.parallelism.sequence_parallel);
  parallel::ShardedParams params(plan.params, mesh.groups(), *backend, *stream);
  StageModel model(plan.uses, plan.model, params, tp, *backend, *stream, mesh.peers());
  ExactSum squares;
  const auto step = [&] {
    params.add_gradient_squares(squares);
    params.step({});
    return true;
  };
  Executor executor(std::move(plan.program), model, params, mesh.edges,
                    {[](const parallel::Action&) {}, [] { return 0.0; }, step});
  params.publish();
  params.finish_gathers();
  tally.work.ops.clear();
  tally.traffic.clear();
  std::vector<double> losses(size_t(job.micro_batches_of(at.dp)) * size_t(model.loss_sums()));
  ExecutorTimes times;
  executor.run(micro_batches(job, at.dp), losses.data(), times);
  // What the next step would do with this one's parameters.
  params.finish_gathers();
  return tally;
}

TimedSteps time_steps(const PlanBasis& basis, std::unique_ptr<kernels::Backend> device, int steps) {
  const JobSpec& job = basis.job;
  ENSURE(job.mesh().world_size() == 1);
  TimedSteps timed;
  const auto backend = kernels::make_timing_backend(std::move(device), timed.work, timed.seconds);
  const auto stream = backend->create_stream();
  RankPlan plan = make_rank_plan(basis, {});
  parallel::TrafficTally traffic;
  const TallyMesh mesh(plan.groups, false, traffic);
  parallel::TensorParallel tp(*mesh.axes[Axis::tp], *backend, *stream, job.parallelism.sequence_parallel);
  parallel::ShardedParams params(plan.params, mesh.groups(), *backend, *stream);
  StageModel model(plan.uses, plan.model, params, tp, *backend, *stream, mesh.peers());
  ExactSum squares;
  const auto step = [&] {
    params.add_gradient_squares(squares);
    params.step({});
    return true;
  };
  Executor executor(std::move(plan.program), model, params, mesh.edges,
                    {[](const parallel::Action&) {}, [] { return 0.0; }, step});
  params.publish();
  params.finish_gathers();
  const auto zeros = backend->allocate(size_t(job.data.seq_len * job.batch.micro_sequences) * 4);
  std::vector<MicroBatch> batch = micro_batches(job, 0);
  for (MicroBatch& mb : batch) mb.arrays[BatchField::tokens] = mb.arrays[BatchField::targets] = zeros->data();
  const auto losses = backend->allocate_host(batch.size() * size_t(model.loss_sums()) * sizeof(double));
  ExecutorTimes times;
  for (int i = 0; i <= steps; ++i) {
    // What is built on the first call with a shape is not the speed of the device.
    if (i == 1) timed.work.ops.clear(), timed.seconds.clear();
    executor.run(batch, static_cast<double*>(losses->data()), times);
    params.finish_gathers();
  }
  return timed;
}

RankTraffic rank_traffic(const PlanBasis& basis, const parallel::MeshPosition& at) {
  const auto& [job, device, tables] = basis;
  const bool by_lanes = job.parallelism.reduces_each_lane();
  const JobSpec fewest = with_fewest_lanes(job);
  // Each further round of micro-batches, or each further lane of a rank, adds the same messages.
  const auto with = [&](int64_t n) {
    return traffic_of(tally_step(
        {by_lanes ? with_lanes(job, n) : with_micro_batches(fewest, n), device, tables}, at, false));
  };
  // In a V the first round is still on its way back when the second one begins.
  const int64_t round = job.parallelism.pipeline * (job.parallelism.stage_order().v_shaped ? 2 : 1);
  const int64_t all = by_lanes ? job.parallelism.lanes_computed_by(at.dp) : fewest.micro_batches_per_lane();
  const int64_t fewer = by_lanes ? int64_t(std::bit_ceil(uint64_t(round))) : all % round + round;
  const int64_t more = by_lanes ? 2 * fewer : fewer + round;
  // With few all are counted. Of many that the width does not divide, the last time is counted as a full one.
  if (all <= more) return by_lanes ? traffic_of(tally_step(basis, at, false)) : with(all);
  const RankTraffic first = with(fewer), second = with(more);
  const double times = double(all - fewer) / double(more - fewer);
  const auto extended = [&](double RankTraffic::*of) {
    return first.*of + times * (second.*of - first.*of);
  };
  return {extended(&RankTraffic::tensor), extended(&RankTraffic::pipeline), extended(&RankTraffic::data),
          extended(&RankTraffic::context), extended(&RankTraffic::experts)};
}

std::vector<MicroBatchTally> tally_micro_batch_ops(const PlanBasis& basis, const parallel::MeshPosition& at) {
  const auto& [job, device, tables] = basis;
  StepTally tally;
  const auto backend = kernels::make_tally_backend(tally.work);
  const auto stream = backend->create_stream();
  const RankParts parts = rank_parts(basis, at);
  const TallyMesh mesh(parts.groups, device.adds_gradients, tally.traffic);
  parallel::TensorParallel tp(*mesh.axes[Axis::tp], *backend, *stream, job.parallelism.sequence_parallel);
  // The work is the same, wherever the weights are kept.
  parallel::ShardingOptions sharding = parts.sharding;
  sharding.zero_stage = std::min(sharding.zero_stage, 1);
  parallel::ShardedParams params(
      parallel::sharding::make_layout(parts.uses.uses, tables.grids.grids, sharding, parts.lines),
      mesh.groups(), *backend, *stream);
  // The halves apart, whatever the schedule: their work is the same.
  StageModel model(parts.uses,
                   {.slots = std::vector<int>(parts.uses.virtual_stages.size(), 1), .split_backward = true},
                   params, tp, *backend, *stream, mesh.peers());
  const auto counted = [&](auto work) {
    tally.work.ops.clear();
    tally.traffic.clear();
    work();
    return tally;
  };
  std::vector<MicroBatchTally> result;
  for (int c = 0; c < int(parts.uses.virtual_stages.size()); ++c) {
    for (int part = 0; part < model.parts(c); ++part) model.take_weights(c, part);
    std::vector<double> losses(size_t(model.loss_sums()));
    MicroBatchTally of;
    of.forward = counted([&] { model.forward(c, 0, {}, true, losses.data()); });
    of.backward_input = counted([&] { model.backward_input(c, 0, {}); });
    of.backward_weight = counted([&] { model.backward_weight(c, 0, {}); });
    const VirtualStageUses& uses = parts.uses.virtual_stages[size_t(c)];
    const kernels::Matrix edge = uses.last ? kernels::Matrix{} : model.output(c, 0);
    const kernels::Matrix back = uses.first ? edge : model.input_gradient(c, 0);
    if (back) of.edge_bytes = double(back.count()) * double(size_of(back.dtype));
    result.push_back(std::move(of));
  }
  return result;
}

kernels::WorkTally tally_rest(const PlanBasis& basis, const parallel::MeshPosition& at,
                              const std::vector<MicroBatchTally>& of_micro_batch) {
  const auto& [job, device, tables] = basis;
  const int rounds = std::max(1, parallel::kind_of(job.parallelism.schedule).least_rounds);
  const JobSpec few = with_micro_batches(with_fewest_lanes(job), rounds * job.parallelism.pipeline);
  kernels::WorkTally rest = tally_step({few, device, tables}, at, false).work;
  const double micro_batches = double(few.micro_batches_of(at.dp));
  for (const MicroBatchTally& of : of_micro_batch)
    for (const StepTally* part : {&of.forward, &of.backward_input, &of.backward_weight})
      for (const auto& [shape, count] : part->work.ops) {
        const auto found = rest.ops.find(shape);
        if (found == rest.ops.end()) continue;
        kernels::OpCount& left = found->second;
        left.calls -= std::min(left.calls, uint64_t(micro_batches) * count.calls);
        left.flops = std::max(0.0, left.flops - micro_batches * count.flops);
        left.attention_flops = std::max(0.0, left.attention_flops - micro_batches * count.attention_flops);
        left.bytes = left.calls == 0 ? 0 : std::max(0.0, left.bytes - micro_batches * count.bytes);
        left.apart_bytes = std::max(0.0, left.apart_bytes - micro_batches * count.apart_bytes);
      }
  return rest;
}

}  // namespace trainctl
