#include "runtime/supervise/loop/attempt_places.h"

#include <algorithm>

#include "ckpt/partners.h"
#include "runtime/base/error.h"
#include "runtime/base/problem.h"

namespace trainctl {
namespace {

/// Ranks read the spec, open data and build the model before the first step, all of them on the same few
/// cores.
double start_timeout_s(int ranks) { return 60 + 1.0 * ranks; }

}  // namespace

void place_ranks(AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet,
                 const parallel::MeshShape& mesh, const std::vector<std::string>& names) {
  ENSURE(options.nodes.empty());
  ENSURE(plan.nodes.nodes.size() == size_t(fleet.size()));
  std::vector<ClusterNode> nodes;
  for (const std::string& name : names) {
    const int node = fleet.find(name);
    ENSURE(node >= 0, "{} is no node of the run", name);
    nodes.push_back(plan.nodes.nodes[size_t(node)]);
  }
  const PlacementResult placed =
      place(mesh, nodes, {.tensor_across_nodes = plan.job.job.launcher.tensor_across_nodes});
  if (!placed.ok()) throw Error(ErrorCode::kPreflight, placed.refusal);
  for (const RankRange& range : placed.placement.ranges)
    options.nodes.push_back(
        {.node = fleet.find(nodes[size_t(range.node)].name), .first = range.first, .count = range.count});
}

Problem place_second_copies(AttemptOptions& options, const SupervisePlan& plan,
                            const parallel::MeshShape& mesh) {
  const CheckpointSpec& checkpoint = plan.job.job.checkpoint;
  if (plan.nodes.one_machine || options.nodes.size() < 2 || checkpoint.memory == MemoryCopies::off ||
      checkpoint.partner == PartnerCopies::off)
    return Problem::none();
  std::vector<int> node_of_rank(size_t(mesh.world_size()));
  ENSURE(options.nodes.back().first + options.nodes.back().count == mesh.world_size());
  for (size_t i = 0; i < options.nodes.size(); ++i)
    for (int k = 0; k < options.nodes[i].count; ++k)
      node_of_rank[size_t(options.nodes[i].first + k)] = int(i);
  const ckpt::Partners partners = ckpt::place_partners(mesh, node_of_rank);
  for (const auto& [node, partner] : partners.partner) {
    ENSURE(node != partner, "node {} would hold its own second copy", node);
    options.nodes[size_t(node)].partner = partner;
  }
  return Problem::of(partners.weakness);
}

std::vector<AttemptFile::Node> nodes_of_attempt(const AttemptOptions& options, const Fleet& fleet) {
  std::vector<AttemptFile::Node> nodes;
  for (const AttemptOptions::Node& place : options.nodes)
    nodes.push_back({.name = fleet.name(place.node), .first = place.first, .count = place.count});
  return nodes;
}

AttemptOptions attempt_options(const SupervisePlan& plan, const RunDirectory& run,
                               const ParallelSpec& parallelism, int64_t last_step) {
  const FaultSpec& fault = plan.job.job.fault_tolerance;
  const CheckpointSpec& checkpoint = plan.job.job.checkpoint;
  const int ranks = parallelism.mesh().world_size();
  AttemptOptions options;
  const std::string scratch = "trainctl." + random_token().substr(0, 12);
  options.session_folder = "/tmp/" + scratch;
  options.shared_memory_folder = "/dev/shm/" + scratch;
  options.keeps_copies = true;
  options.limits = {.ranks = ranks,
                    .target_step = last_step,
                    .heartbeat_s = fault.heartbeat_seconds,
                    .step_timeout_s = fault.step_timeout_seconds,
                    .setup_timeout_s = fault.setup_timeout_seconds,
                    .data_timeout_s = fault.data_timeout_seconds,
                    .load_timeout_s = fault.load_timeout_seconds,
                    .evaluation_timeout_s = fault.evaluation_timeout_seconds,
                    .save_timeout_s = fault.save_timeout_seconds,
                    .start_timeout_s = start_timeout_s(ranks),
                    .exit_timeout_s = checkpoint.exit_timeout_seconds};
  options.saves = {.ranks = ranks, .directory = run.checkpoints(checkpoint)};
  options.file = {.max_steps = plan.max_steps,
                  .threads_per_rank = parallelism.threads_per_rank,
                  .matmul_flops_per_s = plan.matmul_flops_per_s};
  return options;
}

namespace {

/// Why the ranks of the attempt do not run there.
Problem missing_from(const Fleet& fleet, int node, uint64_t epoch) {
  const wire::NodeHello* hello = node < 0 ? nullptr : fleet.hello(node);
  if (!hello) return Problem("it is not connected");
  return hello->epoch == epoch ? Problem::none() : Problem("its ranks are gone");
}

}  // namespace

size_t nodes_there(const Fleet& fleet, const AttemptFile& file) {
  size_t count = 0;
  for (const AttemptFile::Node& node : file.nodes) {
    const int index = fleet.find(node.name);
    if (index < 0) return 0;
    count += missing_from(fleet, index, file.epoch).is_none();
  }
  return count;
}

std::vector<AttemptOptions::Node> places_of(const Fleet& fleet, const AttemptFile& file) {
  std::vector<AttemptOptions::Node> places;
  for (const AttemptFile::Node& node : file.nodes) {
    const int index = fleet.find(node.name);
    places.push_back({.node = index,
                      .first = node.first,
                      .count = node.count,
                      .missing = missing_from(fleet, index, file.epoch).text_or_empty()});
  }
  return places;
}

std::vector<LaunchHost> hosts_of(const AttemptOptions& options, const Fleet& fleet) {
  std::vector<LaunchHost> hosts;
  for (const AttemptOptions::Node& node : options.nodes)
    hosts.push_back(
        {fleet.hello(node.node) ? fleet.hello(node.node)->host : fleet.name(node.node), node.count});
  return hosts;
}

std::string network_of(const AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet) {
  if (!plan.job.job.launcher.network.empty()) return plan.job.job.launcher.network;
  std::string network;
  for (const AttemptOptions::Node& node : options.nodes) {
    const wire::NodeHello* hello = fleet.hello(node.node);
    if (!hello || (!network.empty() && hello->network != network)) return "";
    network = hello->network;
  }
  return network;
}

void set_networks(AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet,
                  const std::string& network) {
  if (options.nodes.size() < 2 || !plan.job.job.launcher.network.empty()) return;
  const auto& given = plan.job.job.launcher.env;
  const auto is_given = [&](const std::string& name) {
    return std::any_of(given.begin(), given.end(),
                       [&](const auto& variable) { return variable.first == name; });
  };
  for (AttemptOptions::Node& node : options.nodes) {
    const wire::NodeHello* hello = fleet.hello(node.node);
    if (!hello || hello->interface.empty()) continue;
    // The second "=" asks for that name alone: without it NCCL takes every interface that begins so.
    if (!is_given("NCCL_SOCKET_IFNAME"))
      node.environment.emplace_back("NCCL_SOCKET_IFNAME", "=" + hello->interface);
    if (network.empty() && !is_given("OMPI_MCA_btl_tcp_if_include"))
      node.environment.emplace_back("OMPI_MCA_btl_tcp_if_include", hello->interface);
  }
}

bool runs_ranks(const std::vector<AttemptOptions::Node>& places, int node) {
  return std::any_of(places.begin(), places.end(),
                     [&](const AttemptOptions::Node& place) { return place.node == node; });
}

}  // namespace trainctl
