#include "runtime/plan/choice_costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "kernels/ops.h"
#include "parallel/schedules.h"
#include "runtime/model/stage_layers.h"
#include "runtime/plan/rank_memory.h"
#include "runtime/predict/collective_time.h"

namespace trainctl {
namespace {

using parallel::TrafficGroup;

/// The model with some layers of one kind.
ModelPlan with_layers(ModelPlan model, const LayerRef& layer, size_t count) {
  model.layers.assign(count, layer);
  return model;
}

double collectives_of(const parallel::TrafficTally& traffic, TrafficGroup group, int ranks) {
  double messages = 0;
  for (const auto& [key, count] : traffic.messages)
    if (key.group == group && key.way == parallel::Way::send) messages += double(count);
  return ranks > 1 ? messages / (ranks - 1) : 0;
}

/// How many ranks take turns on a device (estimate_time), or fewer.
double ranks_of_device(const JobSpec& job, const MeshChoice& choice, bool is_host, int threads_of_rank) {
  const double ranks = choice.ranks();
  if (!is_host) return ranks / std::ceil(ranks / job.launcher.ranks_per_gpu);
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  return std::max(1.0, ranks / std::max(1.0, cores / threads_of_rank));
}

}  // namespace

PassSeconds& PassSeconds::operator+=(const PassSeconds& other) {
  work += other.work;
  excess += other.excess;
  tensor += other.tensor;
  context += other.context;
  experts += other.experts;
  return *this;
}

PassSeconds operator*(double times, const PassSeconds& p) {
  return {times * p.work, times * p.excess, times * p.tensor, times * p.context, times * p.experts};
}

PassCosts& PassCosts::operator+=(const PassCosts& other) {
  forward += other.forward;
  backward_input += other.backward_input;
  backward_weight += other.backward_weight;
  return *this;
}

PassCosts operator*(double times, const PassCosts& costs) {
  return {times * costs.forward, times * costs.backward_input, times * costs.backward_weight};
}

ChoiceCosts::Parameters& ChoiceCosts::Parameters::operator+=(const Parameters& other) {
  dense += other.dense;
  of_experts += other.of_experts;
  return *this;
}

ChoiceCosts::ChoiceCosts(const JobSpec& job, const DeviceModel& device, RanksOnNode ranks_on_node,
                         int64_t lanes)
    : job_(job),
      device_(device),
      lanes_(lanes),
      nccl_(!device.is_host() && uses_nccl(job)),
      ranks_on_node_(std::move(ranks_on_node)),
      cluster_(*device.cluster),
      model_(model_plan(job.model, job.compute)),
      kinds_(model_.unlike_layers()),
      part_flops_(part_flops(model_, job.data.seq_len)) {
  cluster_.device.peak_f32_flops_per_s =
      predict::product_peak(cluster_.device, true, job.tf32 && !device.is_host());
  if (device.is_host()) cluster_.devices_of_node = std::numeric_limits<int>::max();  // as many as ranks
  before_.assign(kinds_.size(), {0});
  for (const LayerRef& layer : model_.layers)
    for (size_t kind = 0; kind < kinds_.size(); ++kind)
      before_[kind].push_back(before_[kind].back() + (layer == kinds_[kind]));
  const auto add = [](Parameters& to, const Param& p) {
    (p.expert >= 0 ? to.of_experts : to.dense) += double(p.count());
  };
  for (const LayerRef& kind : kinds_) {
    of_kind_.emplace_back();
    for (const Param& p : parameter_table(with_layers(model_, kind, 1), job.optimizer).params)
      if (p.layer == 0) add(of_kind_.back(), p);
  }
  const ParamTable table = parameter_table(model_, job.optimizer);
  for (const Param& p : table.params)
    if (p.layer < 0 || p.layer == int(model_.layers.size())) add(p.layer < 0 ? embedding_ : head_, p);
  // Of state in files few parts are in memory.
  if (job.optimizer.offload == StateOffload::none)
    state_bytes_ = double(table.state_bytes()) / double(table.total_count());
}

double ChoiceCosts::micro_batches_of(const MeshChoice& c) const {
  return std::max(1.0, double(job_.batch.global_sequences) / (double(c.data) * double(c.micro)));
}

int ChoiceCosts::ranks_on_node(const MeshChoice& c) {
  const auto [known, fresh] = on_node_.try_emplace({c.tensor, c.context, c.ranks()});
  if (fresh) known->second = ranks_on_node_(c);
  return known->second;
}

DeviceModel ChoiceCosts::device_of(const MeshChoice& choice) {
  DeviceModel device = device_;
  device.ranks_on_node = ranks_on_node(choice);
  return device;
}

const std::vector<int64_t>& ChoiceCosts::layers_of(const MeshChoice& c) {
  const bool v_shaped = parallel::kind_of(c.schedule).v_shaped;
  const auto [known, fresh] = layers_.try_emplace({c.pipeline, c.virtual_stages, v_shaped});
  if (fresh) {
    const ParallelSpec& own = job_.parallelism;
    const parallel::VirtualStages given = own.stage_order(), order = parallel::virtual_stages_of(
                                                                 c.schedule, c.pipeline, c.virtual_stages);
    const bool alike = given.stages == order.stages && given.each == order.each && given.v_shaped == v_shaped;
    known->second = alike && !own.stage_layers.empty() ? own.stage_layers
                    : order.count() == 1               ? std::vector{int64_t(model_.layers.size())}
                                                       : balanced_layers(part_flops_, order);
  }
  return known->second;
}

ChoiceCosts::CutCosts& ChoiceCosts::cut_of(const MeshChoice& c) {
  CutCosts& cut = cuts_[{c.tensor, c.context, c.expert, c.micro, ranks_on_node(c)}];
  if (cut.layers.empty()) cut.layers.resize(kinds_.size());
  return cut;
}

const ChoiceCosts::LayerCosts& ChoiceCosts::layer(CutCosts& cut, const MeshChoice& choice, size_t kind,
                                                  Kept kept) {
  if (!cut.layers[kind][size_t(kept)].known) count(cut, choice, kind, kept);
  return cut.layers[kind][size_t(kept)];
}

PassSeconds ChoiceCosts::pass_of(const StepTally& tally, const ParallelSpec& p, int on_node,
                                 double of_experts) const {
  const predict::WorkKind kind{.f32 = job_.compute == DType::f32,
                               .head_dim = double(job_.model.head_dim()),
                               .passes = cluster_.device.passes,
                               .experts = std::max<int64_t>(1, job_.model.moe.num_experts / p.expert)};
  PassSeconds pass;
  double calls = 0;
  for (const auto& [shape, count] : tally.work.ops) {
    pass.work += predict::op_seconds(cluster_.device, shape, count, kind).sum();
    if (shape.op != kernels::Pack::kName) calls += double(count.calls);
  }
  pass.excess = calls * cluster_.device.launch_s - pass.work;
  const auto exchange = [&](TrafficGroup group, int ranks, int stride, bool all_to_all) {
    const predict::GroupPlace place = predict::place_of_group(cluster_, ranks, stride, on_node);
    const double times = collectives_of(tally.traffic, group, ranks), bytes = tally.traffic.sent(group);
    return all_to_all ? predict::all_to_all_seconds(cluster_, place, times, bytes)
                      : predict::collective_seconds(cluster_, place, times, bytes);
  };
  pass.tensor = exchange(TrafficGroup::tensor, p.tensor, 1, false);
  pass.context = exchange(TrafficGroup::context, p.context, p.tensor, p.exchanges_heads());
  pass.experts = of_experts * exchange(TrafficGroup::experts, p.expert, p.ranks_of_expert(), true);
  return pass;
}

PassCosts ChoiceCosts::costs_of(const MicroBatchTally& tally, const ParallelSpec& p, int on_node) const {
  // Where the halves run together, the gradients of rows come once for both.
  return {pass_of(tally.forward, p, on_node), pass_of(tally.backward_input, p, on_node),
          pass_of(tally.backward_weight, p, on_node, 0.5)};
}

/// In a pipeline of three stages: the embedding alone, the layer, the head alone.
void ChoiceCosts::count(CutCosts& cut, const MeshChoice& c, size_t kind, Kept kept) {
  MeshChoice alone = c;
  alone.pipeline = 3, alone.schedule = parallel::Schedule::one_f_one_b, alone.virtual_stages = 1;
  alone.data = std::max(1, expert_lanes(job_.parallelism, c) / c.context), alone.zero = 1;
  alone.recompute = kept == Kept::input           ? Recompute::full
                    : kept == Kept::all_but_cheap ? Recompute::selective
                                                  : Recompute::none;
  JobSpec job = with_choice(job_, alone);
  // A rank that has one lane may have to add up more with each micro-batch.
  job.parallelism.lanes *= 4;
  job.batch.global_sequences = job.parallelism.lanes * c.micro;
  const int on_node = ranks_on_node(c);
  const auto with = [&](int64_t layers) {
    job.parallelism.stage_layers = {0, layers, 0};
    return model_tables(job, with_layers(model_, kinds_[kind], size_t(layers)));
  };
  const ModelTables one = with(1), two = with(2);
  const auto counted = [&](const ModelTables& tables, int stage) {
    return tally_micro_batch_ops({job, device_, tables}, {.pp = stage}).front();
  };
  const auto bytes_of = [&](const ModelTables& tables, int stage, int slots) {
    return StageModel::plan(stage_uses(tables, job, {.pp = stage}), {.slots = {slots}});
  };
  const auto of_micro_batch = [&](const ModelTables& tables) {
    return double(bytes_of(tables, 1, 2).activations) - double(bytes_of(tables, 1, 1).activations);
  };
  // Of two layers, what comes into a stage and goes out of it is there once.
  LayerCosts& of = cut.layers[kind][size_t(kept)];
  const MicroBatchTally tally = counted(one, 1);
  const PassCosts alone_costs = costs_of(tally, job.parallelism, on_node);
  of.costs = costs_of(counted(two, 1), job.parallelism, on_node);
  of.costs += -1 * alone_costs;
  of.edges = alone_costs;
  of.edges += -1 * of.costs;
  of.activation_bytes = of_micro_batch(two) - of_micro_batch(one);
  of.scratch_bytes = double(bytes_of(one, 1, 1).scratch());
  of.known = true;
  cut.edge_bytes = tally.edge_bytes;
  cut.embedding[size_t(kept)] = costs_of(counted(one, 0), job.parallelism, on_node);
  cut.head[size_t(kept)] = costs_of(counted(one, 2), job.parallelism, on_node);
  cut.head_scratch[size_t(kept)] = double(bytes_of(one, 2, 1).scratch());
}

void ChoiceCosts::add_stage_costs(const MeshChoice& c) {
  CutCosts& cut = cut_of(c);
  const std::vector<int64_t>& counts = layers_of(c);
  const Kept others = c.recompute == Recompute::selective ? Kept::all_but_cheap : Kept::all;
  const Kept of_ends = c.recompute == Recompute::full ? Kept::input : others;
  stages_.clear();
  all_stages_ = {};
  int64_t begin = 0;
  for (size_t v = 0; v < counts.size(); ++v) {
    const int64_t again = c.recompute == Recompute::full           ? counts[v]
                          : c.recompute == Recompute::first_layers ? std::min(counts[v], c.recompute_layers)
                                                                   : 0;
    PassCosts sum, edges;
    const auto add = [&](int64_t from, int64_t to, Kept kept) {
      for (size_t kind = 0; from < to && kind < kinds_.size(); ++kind) {
        const double times = double(before_[kind][size_t(to)] - before_[kind][size_t(from)]);
        if (times == 0) continue;
        const LayerCosts& one = layer(cut, c, kind, kept);
        sum += times * one.costs;
        edges = one.edges;
      }
    };
    add(begin, begin + again, Kept::input);
    add(begin + again, begin + counts[v], others);
    if (v == 0 || v + 1 == counts.size()) layer(cut, c, 0, of_ends);  // which counts the ends, too
    // The embedding has the edge of a stage behind it, the head one in front of it.
    const bool first = v == 0, last = v + 1 == counts.size();
    if (first) sum += cut.embedding[size_t(of_ends)];
    if (last) sum += cut.head[size_t(of_ends)];
    if (first == last) sum += (first ? -1 : 1) * edges;
    stages_.push_back({sum.forward.sum(), sum.backward_input.sum(), sum.backward_weight.sum()});
    for (const PassSeconds* pass : {&sum.forward, &sum.backward_input, &sum.backward_weight})
      all_stages_ += *pass;
    begin += counts[v];
  }
  edge_s_ = c.pipeline > 1 && cut.edge_bytes > 0
                ? predict::message_seconds(cluster_, c.tensor * c.context * c.data, ranks_on_node(c),
                                           cut.edge_bytes)
                : 0;
}

ChoiceCosts::Parameters ChoiceCosts::parameters_of(const MeshChoice& c, int stage, bool with_ends) {
  const std::vector<int64_t>& counts = layers_of(c);
  const parallel::VirtualStages order = parallel::virtual_stages_of(c.schedule, c.pipeline, c.virtual_stages);
  Parameters sum;
  int64_t begin = 0;
  for (int v = 0; v < int(counts.size()); ++v) {
    const int64_t end = begin + counts[size_t(v)];
    if (order.stage_of(v) == stage) {
      for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        const double times = double(before_[kind][size_t(end)] - before_[kind][size_t(begin)]);
        sum += {times * of_kind_[kind].dense, times * of_kind_[kind].of_experts};
      }
      if (with_ends && v == 0) sum += embedding_;
      if (with_ends && v + 1 == int(counts.size())) sum += head_;
    }
    begin = end;
  }
  return sum;
}

/// Of the activations of a stage's layers, what its schedule holds at least: the micro-batches between it and the
/// end; with several virtual stages as many as it runs ahead. And what one micro-batch at a time uses.
double ChoiceCosts::activation_bound(const MeshChoice& c, int stage) {
  const Kept others = c.recompute == Recompute::selective ? Kept::all_but_cheap : Kept::all;
  CutCosts& cut = cut_of(c);
  const std::vector<int64_t>& counts = layers_of(c);
  const parallel::VirtualStages order = parallel::virtual_stages_of(c.schedule, c.pipeline, c.virtual_stages);
  double least = INFINITY, scratch = 0;
  for (int local = 0; local < order.each; ++local) {
    const int v = order.global_of(stage, local);
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + v, int64_t{0}),
                  end = begin + counts[size_t(v)];
    const int64_t again = c.recompute == Recompute::full           ? end
                          : c.recompute == Recompute::first_layers ? std::min(end, begin + c.recompute_layers)
                                                                   : begin;
    double bytes = 0;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const auto layers = [&](int64_t from, int64_t to) {
        return double(before_[kind][size_t(to)] - before_[kind][size_t(from)]);
      };
      const auto add = [&](double times, Kept kept) {
        if (times == 0) return;
        const LayerCosts& of = layer(cut, c, kind, kept);
        bytes += times * of.activation_bytes;
        scratch = std::max(scratch, of.scratch_bytes);
      };
      add(layers(begin, again), Kept::input);
      add(layers(again, end), others);
    }
    const Kept of_ends = c.recompute == Recompute::full ? Kept::input : others;
    if (v + 1 == order.count()) {
      layer(cut, c, 0, of_ends);  // which counts the ends, too
      scratch = std::max(scratch, cut.head_scratch[size_t(of_ends)]);
    }
    least = std::min(least, bytes);
  }
  const double behind = c.pipeline - stage, pieces = micro_batches_of(c) * order.each;
  const double ahead = order.each == 1  ? behind
                       : order.v_shaped ? c.pipeline
                                        : 2 * behind - 1 + (order.each - 1) * c.pipeline;
  return std::min(pieces, ahead) * least + scratch;
}

/// Weights, gradients and state if everything were cut evenly, and activations of layers. Whole experts are
/// shared out over as many ranks more as would cut them.
double ChoiceCosts::least_bytes(const MeshChoice& c, int* worst_stage) {
  const double sharing = double(c.data) * c.context, of_expert = expert_lanes(job_.parallelism, c);
  const double lanes = lanes_ > 0 ? double(lanes_) : double(std::bit_ceil(unsigned(c.data)));
  // A rank that adds the micro-batches of a lane holds its gradients, those of its experts for each rank that
  // shares them; others hold them part by part.
  const bool adds = double(job_.batch.global_sequences) / (lanes * double(c.micro)) > 1;
  const double weight = c.zero >= 3 ? 0 : 2, gradient = c.zero >= 2 && !adds ? 0 : 4;
  double most = 0, all = 0;
  for (int stage = 0; stage < c.pipeline; ++stage) {
    const Parameters p = parameters_of(c, stage, true);
    const double dense = p.dense / c.tensor, of_experts = p.of_experts / c.tensor / of_expert;
    double bytes = (dense + of_experts) * weight + (dense + of_experts * (adds ? of_expert : 1)) * gradient;
    bytes += c.zero == 0 ? (dense + of_experts) * state_bytes_
                         : (dense + of_experts * of_expert) * state_bytes_ / sharing;
    bytes += activation_bound(c, stage);
    if (bytes > most && worst_stage) *worst_stage = stage;
    most = std::max(most, bytes);
    all += bytes * c.tensor * sharing;
  }
  if (device_.is_host()) return all;
  most *= std::min(job_.launcher.ranks_per_gpu, c.ranks());
  ParallelSpec parallelism = job_.parallelism;
  parallelism.tensor = c.tensor, parallelism.context = c.context, parallelism.pipeline = c.pipeline;
  parallelism.data = c.data, parallelism.expert = c.expert;
  parallelism.schedule = c.schedule, parallelism.virtual_stages = c.virtual_stages;
  return most + (nccl_ ? double(nccl_bytes_estimate(parallelism, job_.model.tie_embeddings)) : 0);
}

/// The passes cannot end earlier: each stage waits for the first micro-batch, computes all, and the last
/// gradient goes back to the first stage.
double ChoiceCosts::pipeline_bound(const MeshChoice& c, double micro_batches) const {
  const parallel::VirtualStages order = parallel::virtual_stages_of(c.schedule, c.pipeline, c.virtual_stages);
  // As StepCut::splits_backward.
  const bool apart = parallel::kind_of(c.schedule).splits_backward && job_.model.mtp.num_layers == 0 &&
                     (job_.parallelism.context_blocks == 1 || job_.parallelism.context_blocks == c.context) &&
                     c.recompute != Recompute::full && c.recompute != Recompute::first_layers;
  double bound = 0, before = 0, behind = 0;
  for (int stage = 0; stage < c.pipeline; ++stage) {
    double busy = 0, weights = 0;
    for (int local = 0; local < order.each; ++local) {
      const StageCosts& of = stages_[size_t(order.global_of(stage, local))];
      busy += of.all();
      weights += of.backward_weight;
    }
    const double last = stages_[size_t(stage)].backward_weight;
    const double late = apart ? micro_batches * weights : last;  // may come behind the last gradient
    const double first = stage > 0 ? stages_.front().backward_weight : 0;
    bound = std::max(bound,
                     before + std::max(micro_batches * busy, micro_batches * busy - late + behind + first));
    before += stages_[size_t(stage)].forward + edge_s_;
    behind += stages_[size_t(stage)].backward_input + edge_s_;
  }
  return bound;
}

double ChoiceCosts::step_bound(const MeshChoice& c, const JobSpec* job, double micro_batches, double passes_s,
                               const std::vector<BucketCounts>& buckets) {
  double busy = 0;
  for (const StageCosts& of : stages_) busy += of.all();
  busy *= micro_batches / c.pipeline *
          ranks_of_device(job_, c, device_.is_host(), job ? job->parallelism.threads_per_rank : 1);
  const double spread = cluster_.device.spread * std::sqrt(2 * std::log(double(c.ranks())));
  return (std::max(busy, passes_s) + data_bound(c, job, micro_batches, passes_s, buckets)) * (1 + spread);
}

double ChoiceCosts::least_seconds(const MeshChoice& c) {
  add_stage_costs(c);
  const double micro_batches = micro_batches_of(c);
  // Ranks that take turns fill each other's waits.
  const double passes = device_.is_host() ? 0 : pipeline_bound(c, micro_batches);
  return step_bound(c, nullptr, micro_batches, passes);
}

double ChoiceCosts::simulated_passes(const StepCut& cut) const {
  const parallel::VirtualStages order = cut.parallelism.stage_order();
  const auto at = [&](int stage, const parallel::Instruction& i) -> const StageCosts& {
    return stages_[size_t(order.global_of(stage, i.virtual_stage))];
  };
  const auto cost = [&](int stage, const parallel::Instruction& i) {
    return i.op == parallel::Op::forward          ? at(stage, i).forward
           : i.op == parallel::Op::backward_input ? at(stage, i).backward_input
                                                  : at(stage, i).backward_weight;
  };
  const auto edge = [&](int, const parallel::Instruction&) { return edge_s_; };
  parallel::PipelineShape shape = pipeline_shape(cut, 0);
  const auto simulated = [&](int micro_batches) {
    shape.micro_batches = micro_batches;
    return parallel::simulate(shape, pipeline_programs(shape, cut.splits_backward), cost, edge).makespan;
  };
  // Past those that fill the pipeline, each further round adds as much time.
  const int all = shape.micro_batches, round = shape.stages;
  const int fewer = all % round + 4 * round, more = fewer + 2 * round;
  if (all <= more) return simulated(all);
  const double first = simulated(fewer), second = simulated(more);
  return first + (second - first) * double(all - fewer) / double(more - fewer);
}

double ChoiceCosts::simulated_seconds(const MeshChoice& c, const JobSpec& job,
                                      const std::vector<BucketCounts>& buckets) {
  add_stage_costs(c);
  return step_bound(c, &job, double(job.micro_batches_of(0)), simulated_passes(job), buckets);
}

BoundParts ChoiceCosts::parts(const MeshChoice& c, const JobSpec* job) {
  const double micro_batches = job ? double(job->micro_batches_of(0)) : micro_batches_of(c);
  const double times = micro_batches / c.pipeline;
  MeshChoice without = c;
  without.recompute = Recompute::none;
  add_stage_costs(without);
  BoundParts parts{.work = times * (all_stages_.work + std::max(0.0, all_stages_.excess))};
  add_stage_costs(c);
  const PassSeconds& all = all_stages_;
  parts.recompute = times * (all.work + std::max(0.0, all.excess)) - parts.work;
  parts.tensor = times * all.tensor, parts.context = times * all.context, parts.experts = times * all.experts;
  const double passes = job ? simulated_passes(*job) : pipeline_bound(c, micro_batches);
  parts.bubble = std::max(0.0, passes - times * all.sum());
  parts.data = data_bound(c, job, micro_batches, passes);
  return parts;
}

}  // namespace trainctl
