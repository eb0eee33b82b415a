#include "runtime/plan/step_tally.h"

#include "runtime/base/error.h"
#include "runtime/model/executor.h"
#include "runtime/plan/rank_plan.h"

namespace trainctl {
namespace {

/// The communicators of one rank, with nobody at the other ends.
struct TallyMesh {
  std::unique_ptr<parallel::Communicator> tp, dp, tied;
  PipelineEdges edges;

  TallyMesh(const JobSpec& job, const RankParts& parts, bool transport_adds, parallel::TrafficTally& traffic) {
    const parallel::MeshPosition& at = parts.at;
    const parallel::MeshShape shape = job.mesh();
    tp = parallel::make_tally_communicator(kTensorGroup, at.tp, shape.tp, traffic);
    dp = parallel::make_tally_communicator(kDataGroup, at.dp, shape.dp, traffic, transport_adds);
    if (shape.pp == 1) return;
    const bool first = at.pp == 0, last = at.pp == shape.pp - 1, ring = job.parallelism.virtual_stages > 1;
    const auto edge = [&](const char* group, bool sends) {
      return parallel::make_tally_communicator(group, sends ? 0 : 1, 2, traffic);
    };
    if (parts.tied_peer)
      tied = parallel::make_tally_communicator(kTied, first ? 0 : 1, 2, traffic);
    if (!first || ring)
      edges.activation_in = edge(kActivations, false), edges.gradient_out = edge(kGradients, true);
    if (!last || ring)
      edges.activation_out = edge(kActivations, true), edges.gradient_in = edge(kGradients, false);
  }
};

/// With so many micro-batches a rank, each a lane of its own rank: lanes change neither products nor
/// messages.
JobSpec with_micro_batches(JobSpec job, int64_t micro_batches) {
  job.parallelism.lanes = job.parallelism.data;
  job.batch.global_sequences = micro_batches * job.parallelism.data * job.batch.micro_sequences;
  return job;
}

RankTraffic traffic_of(const StepTally& t) {
  const auto sent = [&](const char* group) { return t.traffic.sent(group); };
  return {sent(kTensorGroup), sent(kActivations) + sent(kGradients) + sent(kTied), sent(kDataGroup)};
}

}  // namespace

std::string traffic_group_of(const std::string& name) {
  if (name.find(", activations between") != std::string::npos) return kActivations;
  if (name.find(", gradients between") != std::string::npos) return kGradients;
  if (name.starts_with("tp group")) return kTensorGroup;
  if (name.starts_with("dp group")) return kDataGroup;
  return name.starts_with("tied embedding") ? kTied : "";
}

StepTally tally_step(const JobSpec& job, const ParamTable& table, const ChunkGrids& grids,
                     const parallel::MeshPosition& at, bool transport_adds, bool messages) {
  StepTally tally;
  tally.traffic.detailed = messages;
  const auto backend = kernels::make_tally_backend(tally.work);
  const auto stream = backend->create_stream();
  RankPlan plan = make_rank_plan(job, table, at);
  const TallyMesh mesh(job, plan, transport_adds, tally.traffic);
  parallel::TensorParallel tp(*mesh.tp, *backend, *stream, job.parallelism.sequence_parallel);
  parallel::ShardedParams params(plan.uses.uses, grids.grids, plan.sharding, *mesh.dp, *mesh.tp, mesh.tied.get(),
                                 *backend, *stream);
  StageModel model(job, plan.uses, plan.model, params, tp, *backend, *stream);
  std::vector<double> squares(size_t(grids.total));
  const auto step = [&] {
    params.add_gradient_squares(grids.first_chunk, squares);
    params.step({});
    return true;
  };
  Executor executor(std::move(plan.program), model, params, mesh.edges,
                    {[](const parallel::Action&) {}, [] { return 0.0; }, step});
  params.publish();
  tally.work.ops.clear();
  tally.traffic.clear();
  std::vector<double> losses(size_t(job.micro_batches_per_rank()));
  ExecutorTimes times;
  executor.run(micro_batches(job), losses.data(), times);
  return tally;
}

RankTraffic rank_traffic(const JobSpec& job, const ParamTable& table, const ChunkGrids& grids,
                         const parallel::MeshPosition& at, bool transport_adds) {
  const auto with = [&](int64_t micro_batches) {
    return traffic_of(
        tally_step(with_micro_batches(job, micro_batches), table, grids, at, transport_adds, false));
  };
  const int64_t all = job.micro_batches_per_rank(), round = job.parallelism.pipeline,
                fewer = all % round + round, more = fewer + round;
  if (all <= more) return with(all);
  const RankTraffic first = with(fewer), second = with(more);
  const double rounds = double((all - fewer) / round);
  const auto extended = [&](double RankTraffic::*of) {
    return first.*of + rounds * (second.*of - first.*of);
  };
  return {extended(&RankTraffic::tensor), extended(&RankTraffic::pipeline), extended(&RankTraffic::data)};
}

}  // namespace trainctl
