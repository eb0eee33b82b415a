#include "runtime/plan/rank_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {

using parallel::Axis;

RankGroups rank_groups(const ParallelSpec& parallelism, bool shares_embedding,
                       const parallel::MeshPosition& at) {
  const parallel::MeshShape mesh = parallelism.mesh();
  const parallel::VirtualStages stages = parallelism.stage_order();
  const bool first = at.pp == 0, last = at.pp == mesh.pp - 1;
  const bool ring = mesh.pp > 1 && stages.each > 1 && !stages.v_shaped;
  RankGroups groups{.axes = {},
                    .experts = {},
                    .expert_data = {},
                    .gathers_apart = shards_weights(parallelism),
                    .tied_peer = shares_embedding && stages.last_stage() > 0 && (first || last),
                    .stages = stages,
                    .activations_come = !first || ring,
                    .activations_go = !last || ring};
  for (const parallel::AxisRow& row : parallel::kAxes) groups.axes[row.axis] = mesh_group(mesh, at, row.axis);
  const parallel::MeshGroup have_experts =
      parallelism.token_parts() > 1 ? mesh_group(mesh, at, Axis::tp, Axis::dp) : groups.axes[Axis::dp];
  groups.experts = expert_group(have_experts, parallelism.expert);
  groups.expert_data = expert_data_group(have_experts, parallelism.expert);
  return groups;
}

namespace {

/// A CPU's memory is the host's.
parallel::StateHome state_home(StateOffload offload, bool on_host) {
  if (offload == StateOffload::disk && on_host) return parallel::StateHome::file;
  return offload == StateOffload::host && !on_host ? parallel::StateHome::host : parallel::StateHome::memory;
}

parallel::AxisLines lines_of(const RankGroups& groups) {
  parallel::AxisLines lines;
  for (const parallel::AxisRow& row : parallel::kAxes)
    if (const parallel::MeshGroup& group = groups.axes[row.axis]; row.shared)
      lines.push_back({row.shared, group.size, group.rank, row.has_lanes});
  if (const parallel::MeshGroup& group = groups.expert_data; groups.experts.size > 1)
    lines.push_back({parallel::axes::expert_data, group.size, group.rank, true});
  if (groups.tied_peer) lines.push_back({parallel::axes::uses, 2, groups.axes[Axis::pp].rank > 0 ? 1 : 0});
  return lines;
}

}  // namespace

RankParts rank_parts(const PlanBasis& basis, const parallel::MeshPosition& at) {
  const auto& [job, device, tables] = basis;
  RankParts parts{.at = at,
                  .groups = rank_groups(job.parallelism, tables.params.shares_embedding, at),
                  .uses = stage_uses(tables, job, at),
                  .sharding = sharding_options(job, job.optimizer.muon),
                  .batch = {.first = at.pp == 0,
                            .last = at.pp == job.parallelism.stage_order().last_stage(),
                            .documents = job.data.masks_documents(),
                            .cuts = job.parallelism.context_blocks > 1,
                            .weights = job.data.weighs_targets(),
                            .mtp = int(job.model.mtp.num_layers)},
                  .sequences = job.micro_batches_of(at.dp) * job.batch.micro_sequences,
                  .counted_micro_batches = StepCut(job).counted_micro_batches_of(at.dp)};
  parts.lines = lines_of(parts.groups);
  parts.sharding.state_home = state_home(job.optimizer.offload, device.is_host());
  parts.sharding.fast_reduction &= device.adds_gradients && job.parallelism.ranks_of_parameters() > 1;
  parts.sharding.links = device.is_host() ? parallel::links_of_hosts() : parallel::links_of_gpus();
  const parallel::MeshGroup& dp = parts.groups.axes[Axis::dp];
  parts.sharding.links.neighbours = parallel::neighbours_on_node(dp.size, dp.stride, device.ranks_on_node);
  return parts;
}

RankPlan make_rank_plan(const PlanBasis& basis, const parallel::MeshPosition& at) {
  const auto& [job, device, tables] = basis;
  RankPlan plan{rank_parts(basis, at),
                {},
                {},
                {},
                {},
                trace_spans(job.batch, job.parallelism, job.model.num_layers),
                {},
                {}};
  plan.params =
      parallel::sharding::make_layout(plan.uses.uses, tables.grids.grids, plan.sharding, plan.lines);
  plan.program = stage_program(job, at, plan.uses);
  const Problem problem =
      parallel::step_problem(plan.program.shape, plan.program.slots, plan.program.actions);
  ENSURE(problem.is_none(), "{}", problem.text_or_empty());
  plan.model = {.slots = plan.program.slots.slots,
                .split_backward = StepCut(job).splits_backward,
                .loss_scale = float(1.0 / double(job.tokens_per_step())),
                .masks_targets = job.data.masks_targets()};
  const parallel::ShardingBytes sharding = plan.params.bytes();
  plan.scratch = scratch_shape(tables, sharding);
  plan.memory = memory_of_stage(basis, StageModel::plan(plan.uses, plan.model), plan.batch, plan.sequences);
  plan.memory.at = at;
  add_state(plan.memory, basis, sharding);
  plan.regions = memory_regions(plan.params, plan.memory);
  return plan;
}

ForwardPlan make_forward_plan(const PlanBasis& basis) {
  RankParts parts = rank_parts(basis, {});
  parts.sharding.weights_alone = true;
  auto params =
      parallel::sharding::make_layout(parts.uses.uses, basis.tables.grids.grids, parts.sharding, parts.lines);
  return {std::move(parts.uses),
          std::move(params),
          {.slots = {1}, .masks_targets = basis.job.data.masks_targets()}};
}

namespace {

std::string sums_text(parallel::AxisSet axis) {
  for (const parallel::AxisRow& row : parallel::kAxes)
    if (row.shared == axis) return fmt::format("sums over the {} group", row.group);
  return "gradients of the other use";
}

}  // namespace

std::vector<MemoryRegion> memory_regions(const parallel::sharding::Layout& params, const RankMemory& m) {
  using namespace parallel::sharding;
  std::vector<MemoryRegion> regions;
  const auto add = [&](const std::string& name, size_t bytes, bool pinned_host = false) {
    if (bytes > 0) regions.push_back({name, bytes, pinned_host});
  };
  add("weights", m.sharding.weights);
  add("gradients", m.sharding.gradients);
  for (int g = 0; g < params.groups(); ++g) {
    const GroupBytes bytes = params.group_bytes(g);
    const std::string of = " of " + parallel::name_of(params.group(g).key);
    for (size_t i = 0; i < bytes.states.size() && bytes.home != parallel::StateHome::file; ++i)
      add(std::string(params.group(g).key.states[i].words) + of, bytes.states[i],
          bytes.home == parallel::StateHome::host);
    add("own gradients" + of, bytes.summed);
    for (const auto& [axis, received] : bytes.received)
      add(sums_text(axis) + of, received);
  }
  add("parts of the state in a file",
      std::min(m.sharding.state_file, StatePlaces::kPartsInMemory * params.plan.state_part));
  add("buckets under way", params.ring.bytes());
  add("buckets of weights under way", params.plan.gather_ring.bytes());
  add("updates of whole matrices", m.sharding.matrix_scratch);
  add("activations", m.stage.activations);
  add("one micro-batch at a time", m.stage.shared);
  add("sums of tensor parallelism", m.stage.tensor_sums);
  add("rotary table", m.stage.positions);
  add("order of context parallelism", m.stage.context);
  add("histograms of quantile balancing", m.stage.margins);
  add("tokens", m.data);
  add("workspace of products and kernels", m.workspace);
  add("NCCL (estimate)", m.nccl);
  add("checkpoint buffer", m.saving_beside_copies());
  add("spans of traced steps", m.trace);
  add("program and libraries", m.program);
  add("counts of the rows of experts", m.stage.host, true);
  add("staging of saves and loads", m.pinned_host - m.stage.host - m.sharding.state_host, true);
  add("copies of the state in memory", m.copies, !m.copies_count);
  return regions;
}

}  // namespace trainctl
