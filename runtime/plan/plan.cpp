#include "runtime/plan/plan.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "parallel/bucket_plan.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/model/flops.h"
#include "runtime/model/placement_check.h"
#include "runtime/model/stage_program.h"
#include "runtime/plan/instruction_times.h"
#include "runtime/plan/pipeline_plan.h"

namespace trainctl {
namespace {

using StageClass = std::vector<VirtualStageClass>;

/// The rank of a class of stages that takes most, and what it sends.
struct WorstRank {
  parallel::MeshPosition at;
  parallel::ShardingBytes sharding;
  RankTraffic traffic;
};

/// What the plan says of one stage.
struct PlannedStage {
  RankMemory worst;
  RankTraffic traffic;   // of that rank
};

class Planner {
 public:
  explicit Planner(const PlanBasis& basis) : job_(basis.job), device_(basis.device), tables_(basis.tables) {}

  PlanBasis basis() const { return {job_, device_, tables_}; }
  /// Of a data-parallel rank: ranks with as many lanes have the same.
  const PipelinePlan& pipeline(int dp_rank) {
    const auto [known, fresh] = pipelines_.try_emplace(job_.parallelism.lanes_computed_by(dp_rank));
    if (fresh) known->second = plan_pipeline(job_, dp_rank);
    return known->second;
  }
  int classes() const { return int(worst_.size()); }

  PlannedStage stage(int pp) {
    const RankParts parts = rank_parts(basis(), {.pp = pp});
    // Where ranks have different numbers of lanes, which of them takes most depends on the stage.
    const bool even = job_.parallelism.lanes % job_.parallelism.data == 0;
    const auto [known, fresh] = worst_.try_emplace({parts.uses.stage_class(), even ? 0 : pp});
    if (fresh) known->second = worst_of(parts);
    const WorstRank& worst = known->second;
    PlannedStage result{alike(rank_parts(basis(), {.dp = worst.at.dp, .pp = pp})), worst.traffic};
    result.worst.at = worst.at;
    result.worst.at.pp = pp;
    add_state(result.worst, basis(), worst.sharding);
    return result;
  }

  /// Memory of any one rank of the parts' stage and number of lanes, but for what depends on the state that
  /// it holds.
  RankMemory alike(const RankParts& parts) {
    const StageModel::Options options{pipeline(parts.at.dp).slots[size_t(parts.at.pp)],
                                      StepCut(job_).splits_backward, 1.0f, job_.data.masks_targets()};
    return memory_of_stage(basis(), StageModel::plan(parts.uses, options), parts.batch, parts.sequences);
  }

 private:
  WorstRank worst_of(const RankParts& parts) {
    const Problem wrong_sum = placement_problem(tables_, job_, parts.at);
    ENSURE(wrong_sum.is_none(), "{}", wrong_sum.text_or_empty());
    WorstRank result;
    size_t most = 0;
    std::map<int, RankMemory> alike_by_lanes;
    for (int tp = 0; tp < job_.parallelism.tensor; ++tp) {
      parallel::AxisLines lines = parts.lines;
      for (parallel::AxisLine& line : lines)
        if (line.axis == parallel::axes::tensor) line.rank = tp;
      // The ranks that differ, each with the first data-parallel rank that takes so much.
      for (const auto& ranks :
           parallel::sharding::rank_classes(parts.uses.uses, tables_.grids.grids, parts.sharding, lines)) {
        const int context = job_.parallelism.context, dp = ranks.first_rank / context;
        const auto [known, fresh] = alike_by_lanes.try_emplace(job_.parallelism.lanes_computed_by(dp));
        if (fresh) known->second = alike(rank_parts(basis(), {.dp = dp, .pp = parts.at.pp}));
        RankMemory m = known->second;
        add_state(m, basis(), ranks.bytes);
        if (m.total() <= most) continue;
        most = m.total();
        result = {{tp, ranks.first_rank % context, dp, parts.at.pp}, ranks.bytes, {}};
      }
    }
    result.traffic = rank_traffic(basis(), result.at);
    return result;
  }

  const JobSpec& job_;
  const DeviceModel& device_;
  const ModelTables& tables_;
  std::map<int, PipelinePlan> pipelines_;   // by the number of lanes
  std::map<std::pair<StageClass, int>, WorstRank> worst_;
};

BucketCounts count_buckets(const parallel::sharding::Layout& params) {
  BucketCounts counts;
  for (const auto& group : params.plan.groups) {
    const parallel::sharding::LaneLine& line = params.plan.lines[size_t(group.line)];
    const int ranks = line.ranks;
    if (ranks == 1) continue;
    for (const auto& bucket : group.buckets) {
      const bool direct = bucket.exchange == parallel::Exchange::direct;
      ++(direct ? counts.direct : counts.halving);
      if (!direct) continue;
      const parallel::BucketLoad load = parallel::sharding::bucket_load(
          params.plan, group, bucket, size_of(params.options.reduction_dtype));
      counts.largest_direct_bytes = std::max(counts.largest_direct_bytes, load.size.bytes);
      if (!std::has_single_bit(unsigned(ranks))) continue;
      const parallel::GroupLinks links = parallel::sharding::links_along(line, params.options);
      counts.more_bytes += parallel::direct_cost(load, ranks, links).bytes -
                           parallel::halving_cost(load, ranks, links).bytes;
    }
  }
  return counts;
}

}  // namespace

const RankMemory& JobPlan::worst() const {
  return *std::max_element(stages.begin(), stages.end(),
                           [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

RankMemory rank_memory(const JobSpec& job, DeviceKind kind, const parallel::MeshPosition& at) {
  const DeviceModel device = device_of_kind(job, kind);
  const ModelTables tables = model_tables(job);
  return measure_rank({job, device, tables}, at).memory;
}

RankMeasure measure_rank(const PlanBasis& basis, const parallel::MeshPosition& at) {
  Planner planner(basis);
  const RankParts parts = rank_parts(basis, at);
  const auto params =
      parallel::sharding::make_layout(parts.uses.uses, basis.tables.grids.grids, parts.sharding, parts.lines);
  RankMeasure measure{planner.alike(parts), count_buckets(params)};
  measure.memory.at = at;
  add_state(measure.memory, basis, params.bytes());
  return measure;
}

JobPlan make_plan(const JobSpec& job, DeviceKind kind) { return make_plan(job, device_of_kind(job, kind)); }

JobPlan make_plan(const JobSpec& job, const DeviceModel& device) {
  const ModelTables tables = model_tables(job);
  return make_plan(PlanBasis{job, device, tables});
}

JobPlan make_plan(const PlanBasis& basis) {
  const auto& [job, device, tables] = basis;
  Planner planner(basis);
  const ParamTable& table = tables.params;
  const ModelPlan& model = tables.model;
  const FlopsPerToken flops = flops_per_token(model, job.data.seq_len);
  JobPlan plan;
  plan.device = device.kind;
  plan.parameters = table.total_count();
  plan.parameters_without_embedding = plan.parameters;
  plan.active_parameters = plan.parameters - idle_parameters(model);
  for (const Param& p : table.params)
    if (p.mtp > 0) plan.mtp_parameters += p.count();
  for (const Param& p : table.params)
    if (p.role == ParamRole::embedding || p.role == ParamRole::position)
      plan.parameters_without_embedding -= p.count();
  plan.tokens_per_step = job.tokens_per_step();
  plan.micro_batches = job.micro_batches_of(0);
  plan.flops_per_step_causal = flops.causal * double(plan.tokens_per_step);
  plan.flops_per_step_full = flops.full * double(plan.tokens_per_step);
  for (int pp = 0; pp < job.parallelism.pipeline; ++pp) {
    const PlannedStage stage = planner.stage(pp);
    plan.stages.push_back(stage.worst);
    if (stage.traffic.total() > plan.traffic.total()) plan.traffic = stage.traffic, plan.traffic_stage = pp;
  }
  plan.work =
      stage_work(tables.stage_layers, job.parallelism.stage_order(), part_flops(model, job.data.seq_len));
  plan.bubble_fraction = planner.pipeline(0).bubble_fraction;
  plan.checkpoint_bytes = table.checkpoint_bytes();
  const RankMemory& worst = plan.worst();
  const RankParts parts = rank_parts(basis, worst.at);
  const auto params =
      parallel::sharding::make_layout(parts.uses.uses, tables.grids.grids, parts.sharding, parts.lines);
  plan.regions = memory_regions(params, worst);
  plan.buckets = count_buckets(params);
  for (const auto& owned : params.owned_chunks())
    if (owned.saved_here)
      plan.saved_bytes +=
          params.group(owned.group)
              .key.states.saved_bytes(owned.chunk.where.global.count(),
                                      kernels::moment_blocks(owned.chunk.where.global.count()));
  plan.classes = planner.classes();
  return plan;
}

PipelinePicture pipeline_picture(const JobSpec& job, const DeviceModel& device,
                                 std::optional<int> micro_batches) {
  PipelinePicture picture{.shape = pipeline_shape(job, 0), .is_predicted = device.cluster.has_value()};
  picture.shape.micro_batches = micro_batches.value_or(picture.shape.micro_batches);
  picture.timeline = InstructionTimes(job, device, device.cluster ? &*device.cluster : nullptr)
                         .timeline(picture.shape.micro_batches);
  return picture;
}

std::string render_timeline(const JobSpec& job, const DeviceModel& device, int width) {
  const parallel::PipelineShape shape = pipeline_shape(job, 0);
  constexpr int64_t kMostDrawn = 1 << 20;
  if (int64_t(shape.micro_batches) * shape.stages * shape.virtual_stages > kMostDrawn)
    throw Error(
        ErrorCode::kPlan,
        fmt::format(
            "a timeline of {} micro-batches on {} stages cannot be drawn; draw one of fewer, such as -s "
            "batch.global_sequences={}",
            shape.micro_batches, shape.stages,
            4 * shape.stages * job.parallelism.lanes * job.batch.micro_sequences));
  const PipelinePicture picture = pipeline_picture(job, device);
  return parallel::draw(picture.shape, picture.timeline, width) +
         fmt::format("the stages are idle for {:.1f} % of {}\n", 100 * picture.timeline.bubble_fraction,
                     picture.is_predicted
                         ? fmt::format("{}, the predicted time of the passes on cluster {}",
                                       duration_text(picture.timeline.makespan), device.cluster->name)
                     : device.flops_per_s > 0 && device.link_bytes_per_s > 0
                         ? "the step, by counted FLOPs and transfers at the speed of the link"
                         : "the step, by counted FLOPs");
}

}  // namespace trainctl
