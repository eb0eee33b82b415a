#include "runtime/train/rank_resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/base/error.h"
#include "runtime/base/scratch_file.h"
#include "runtime/machine/rank_device.h"
#include "runtime/model/placement_check.h"
#include "runtime/model/warm_up.h"

namespace trainctl {

using parallel::Axis;
using parallel::Communicator;

namespace {

/// What the rank's plan is made for. dp: its data-parallel group. nodes: see RankResources.
DeviceModel device_of_rank(const JobSpec& job, const kernels::Backend& backend, const Communicator& dp,
                           const std::vector<NodeRanks>& nodes) {
  DeviceModel device = device_of_kind(job, backend.is_host() ? DeviceKind::cpu : DeviceKind::cuda);
  device.adds_gradients = dp.reduces();
  std::vector<int> ranks;
  for (const NodeRanks& node : nodes) ranks.push_back(node.count);
  device.ranks_on_node = parallel::ranks_on_node(ranks);
  return device;
}

}  // namespace

RankResources::RankResources(const JobSpec& job, Communicator& w, kernels::Backend& b,
                             const std::vector<NodeRanks>& nodes)
    : job(job),
      world(w),
      backend(b),
      mesh(job.mesh()),
      at(parallel::position_of(mesh, world.rank())),
      tables(model_tables(job)),
      comms(make_mesh_communicators(rank_groups(job.parallelism, tables.params.shares_embedding, at), world)),
      plan(make_rank_plan({job, device_of_rank(job, backend, *comms.axes[Axis::dp], nodes), tables}, at)),
      numerics(run_numerics(job, backend.is_host() ? DeviceKind::cpu : DeviceKind::cuda, backend.numerics())),
      stream(backend.create_stream()) {}

void RankResources::build(size_t most_staging_bytes, const std::string& scratch_folder,
                          RankActivity& activity) {
  activity.enter(RunPhase::building);
  const Problem wrong_sum = placement_problem(tables, job, at);
  ENSURE(wrong_sum.is_none(), "{}", wrong_sum.text_or_empty());
  if (!backend.is_host())
    for (auto [axis, messages] : rehearsed_axes())
      *axis = parallel::make_rehearsable(std::move(*axis), rehearsing_, *messages);
  const int micro_batches = plan.program.shape.pipeline.micro_batches;
  tp = std::make_unique<parallel::TensorParallel>(*comms.axes[Axis::tp], backend, *stream,
                                                  job.parallelism.sequence_parallel);
  params = std::make_unique<parallel::ShardedParams>(plan.params, comms.shared(), backend, *stream,
                                                     state_file(scratch_folder));
  activity.progress(1, 3, false);
  model = std::make_unique<StageModel>(plan.uses, plan.model, *params, *tp, backend, *stream,
                                       comms.peers(rehearsing_));
  activity.progress(2, 3, false);
  losses =
      backend.allocate_host(std::max<size_t>(size_t(micro_batches * model->loss_sums()), 1) * sizeof(double));
  if (job.data.train.size() > 1 && owns_losses()) {
    token_losses = backend.allocate_host(size_t(micro_batches) * size_t(tables.shape.rows) * sizeof(float));
    model->watch_losses(static_cast<float*>(token_losses->data()));
  }
  const StageModel::ExpertCounts counts = StageModel::expert_counts(plan.uses);
  if (counts.layers > 0 && at.tp == 0) {
    const size_t bytes = size_t(counts.of_micro_batch()) * size_t(micro_batches) * sizeof(int32_t);
    expert_counts = backend.allocate_host(std::max<size_t>(bytes, 1));
    model->watch_experts(static_cast<int32_t*>(expert_counts->data()));
  }
  parallel::SequenceCut cut = tables.shape.cut;
  cut.rank = at.cp;
  if (!plan.batch.empty())
    tokens = std::make_unique<TokenFeed>(plan.batch, plan.sequences, cut, job.data.count_boundary_targets,
                                         backend);
  saving_stream = backend.create_stream();
  staging = std::make_unique<StateStaging>(backend, *saving_stream,
                                           staging_bytes(plan.memory.sharding.saved, most_staging_bytes));
  device_chunks = std::make_unique<DeviceChunks>(*staging, *params);
  backend.reserve_scratch(plan.scratch);
}

std::unique_ptr<File> RankResources::state_file(const std::string& scratch_folder) const {
  const uint64_t bytes =
      job.optimizer.offload == StateOffload::disk ? parallel::sharding::place_states(plan.params).bytes() : 0;
  if (bytes == 0) return nullptr;
  const std::string& asked = job.optimizer.offload_directory;
  return create_scratch_file({.directory = !asked.empty()            ? asked
                                           : !scratch_folder.empty() ? scratch_folder
                                                                     : "/tmp",
                              .field = "optimizer.offload_directory",
                              .bytes = bytes});
}

void RankResources::rehearse(RankActivity& activity) {
  if (backend.is_host()) return;
  activity.enter(RunPhase::building, -1, "(every op runs once)");
  rehearsing_ = true;
  warm_up({.model = *model,
           .params = *params,
           .backend = backend,
           .virtual_stages = job.parallelism.virtual_stages,
           .split_backward = plan.model.split_backward,
           .lanes = plan.params.shares.front().lanes.count(),
           .reductions = plan.params.reductions(),
           .lanes_of_micro_batch = job.parallelism.blocks_of_rank(),
           .arrays = tokens ? tokens->arrays(0) : PerField<const void*>{},
           .losses = loss_sums()});
  rehearsing_ = false;
  activity.enter(RunPhase::building, -1, "(connecting with peers)");
  for (auto [axis, messages] : rehearsed_axes()) {
    std::vector<int> peers;
    for (const auto& [peer, with] : *messages) peers.push_back(peer);
    (*axis)->connect(peers);
  }
  comms.edges.connect();
}

std::vector<RankResources::RehearsedAxis> RankResources::rehearsed_axes() {
  std::vector<RehearsedAxis> axes;
  for (const parallel::AxisRow& row : parallel::kAxes)
    if (row.moves_tensors) axes.push_back({&comms.axes[row.axis], &rehearsed_[row.axis]});
  axes.insert(axes.end(), {{&comms.experts, &experts_},
                           {&comms.expert_data, &expert_data_},
                           {&comms.gathers, &gathers_},
                           {&comms.expert_gathers, &expert_gathers_},
                           {&comms.tied, &tied_}});
  std::erase_if(axes, [](const RehearsedAxis& of) { return !*of.axis; });
  return axes;
}

RankState RankResources::state(std::function<void(uint64_t, uint64_t)> progress) {
  return {*params, backend, *stream, *staging, std::move(progress)};
}

void require_equal_numerics(Communicator& world, const std::string& numerics) {
  std::array<char, 256> first{};
  numerics.copy(first.data(), first.size() - 1);
  const std::array<char, 256> own = first;
  parallel::broadcast(world.host(), 0, first.data(), first.size());
  if (first == own) return;
  throw Error(
      ErrorCode::kPreflight,
      fmt::format("rank {} computes with {}, rank 0 with {}: one run needs devices of one kind, or its bits "
                  "depend on which "
                  "rank computes what; choose equal machines, or equal GPUs with CUDA_VISIBLE_DEVICES",
                  world.rank(), own.data(), first.data()));
}

}  // namespace trainctl
