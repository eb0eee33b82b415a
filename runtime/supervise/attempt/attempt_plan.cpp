#include "runtime/supervise/attempt/attempt_plan.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ckpt/partners.h"
#include "runtime/base/ensure.h"
#include "runtime/supervise/decide/widths.h"

namespace trainctl {
namespace {

using Nodes = std::vector<AttemptPlan::Node>;

/// Processes start on few cores, and for at least as long as a node may be without contact.
double start_timeout_s(int ranks, const FaultSpec& fault) {
  return std::max(60 + 1.0 * ranks, fault.grace_seconds);
}

/// Ten thousand nodes are looked up for a hundred thousand ranks.
using ByName = std::unordered_map<std::string_view, const KnownNode*>;
ByName by_name(const AttemptFacts& facts) {
  ByName nodes;
  for (const KnownNode& known : facts.nodes) nodes.emplace(known.node.name, &known);
  return nodes;
}

const KnownNode& known_of(const ByName& nodes, const std::string& name) {
  const auto found = nodes.find(name);
  ENSURE(found != nodes.end(), "{} is no node of the run", name);
  return *found->second;
}

AttemptPlan::Node node_of(const AttemptFacts& facts, const KnownNode& known, int first, int count) {
  return {.node = int(&known - facts.nodes.data()),
          .first = first,
          .count = count,
          .name = known.node.name,
          .host = known.hello ? known.hello->host : known.node.name,
          .pieces = known.hello ? known.hello->pieces : wire::PieceServerAddress{}};
}

/// The ranks on the nodes of the decision, in its order.
Nodes placed(const AttemptFacts& facts, const parallel::MeshShape& mesh) {
  const ByName names = by_name(facts);
  std::vector<ClusterNode> cluster;
  for (const std::string& name : facts.start.nodes) cluster.push_back(known_of(names, name).node);
  const PlacementResult result =
      place(mesh, cluster, {.tensor_across_nodes = facts.job.job.launcher.tensor_across_nodes});
  if (!result.ok()) throw Error(ErrorCode::kPreflight, result.refusal);
  Nodes nodes;
  for (const RankRange& range : result.placement.ranges)
    nodes.push_back(
        node_of(facts, known_of(names, cluster[size_t(range.node)].name), range.first, range.count));
  return nodes;
}

/// Where second copies of the memory of the nodes are held, if the job wants them.
ckpt::Partners partners_of(const AttemptFacts& facts, const Nodes& nodes, const parallel::MeshShape& mesh) {
  const CheckpointSpec& checkpoint = facts.job.job.checkpoint;
  if (facts.one_machine || nodes.size() < 2 || checkpoint.memory == MemoryCopies::off ||
      checkpoint.partner == PartnerCopies::off)
    return {};
  std::vector<int> node_of_rank(size_t(mesh.world_size()));
  ENSURE(nodes.back().first + nodes.back().count == mesh.world_size());
  for (size_t i = 0; i < nodes.size(); ++i)
    for (int k = 0; k < nodes[i].count; ++k) node_of_rank[size_t(nodes[i].first + k)] = int(i);
  return ckpt::place_partners(mesh, node_of_rank);
}

/// Where `name` lets others read its pieces; null: it is not there, or has no server.
const wire::PieceServerAddress* server_of(const ByName& nodes, const std::string& name) {
  const auto found = nodes.find(name);
  const wire::NodeHello* hello = found == nodes.end() ? nullptr : found->second->hello;
  return hello && hello->pieces.exists() ? &hello->pieces : nullptr;
}

/// Where ranks on several nodes read the state; empty if it is not in memory, or on one machine.
std::vector<wire::PieceHolder> holders_of(const AttemptFacts& facts) {
  if (!facts.begin.memory || facts.one_machine) return {};
  const Source& memory = *facts.begin.memory;
  const ByName names = by_name(facts);
  std::map<std::string, wire::PieceHolder> first, others;
  const auto add = [](wire::PieceHolder& holder, const wire::PieceServerAddress& server, int rank) {
    holder.server = server;
    if (!holder.ranks.empty() && holder.ranks.back().first + holder.ranks.back().count == rank)
      ++holder.ranks.back().count;
    else
      holder.ranks.push_back({rank, 1});
  };
  ENSURE(memory.nodes.size() == size_t(memory.ranks), "{} nodes for {} ranks", memory.nodes.size(),
         memory.ranks);
  for (int rank = 0; rank < memory.ranks; ++rank) {
    const std::string& node = memory.nodes[size_t(rank)];
    const wire::PieceServerAddress* const server = server_of(names, node);
    ENSURE(server, "the piece of rank {} is not reachable", rank);  // is_reachable() was asked before
    add(first[node], *server, rank);
  }
  std::vector<std::pair<int, std::string>> further = memory.others;
  std::sort(further.begin(), further.end());
  for (const auto& [rank, node] : further)
    if (const wire::PieceServerAddress* server = server_of(names, node)) add(others[node], *server, rank);
  std::vector<wire::PieceHolder> list;
  for (auto* holders : {&first, &others})  // a rank takes the first that it finds
    for (auto& [node, holder] : *holders) list.push_back(std::move(holder));
  return list;
}

/// launcher.network if it is given; otherwise the network of the agents' connections, "" if they differ.
std::string network_of(const AttemptFacts& facts, const Nodes& nodes) {
  if (!facts.job.job.launcher.network.empty()) return facts.job.job.launcher.network;
  std::string network;
  for (const AttemptPlan::Node& node : nodes) {
    const wire::NodeHello* hello = facts.nodes[size_t(node.node)].hello;
    if (!hello || (!network.empty() && hello->network != network)) return "";
    network = hello->network;
  }
  return network;
}

/// The interface of a node for NCCL and, if `network` is "", for OpenMPI. Variables in launcher.env stay as
/// they are.
Environment networks_of(const AttemptFacts& facts, const AttemptPlan::Node& node,
                        const std::string& network) {
  const Environment& given = facts.job.job.launcher.env;
  const auto is_given = [&](const std::string& name) {
    return std::any_of(given.begin(), given.end(),
                       [&](const auto& variable) { return variable.first == name; });
  };
  const wire::NodeHello* hello = facts.nodes[size_t(node.node)].hello;
  Environment environment;
  if (!hello || hello->interface.empty() || !facts.job.job.launcher.network.empty()) return environment;
  // The second "=" asks for that name alone: without it NCCL takes every interface that begins so.
  if (!is_given("NCCL_SOCKET_IFNAME")) environment.emplace_back("NCCL_SOCKET_IFNAME", "=" + hello->interface);
  if (network.empty() && !is_given("OMPI_MCA_btl_tcp_if_include"))
    environment.emplace_back("OMPI_MCA_btl_tcp_if_include", hello->interface);
  return environment;
}

/// What does not depend on the nodes.
AttemptPlan frame_of(const AttemptFacts& facts, const ParallelSpec& parallelism) {
  const FaultSpec& fault = facts.job.job.fault_tolerance;
  const CheckpointSpec& checkpoint = facts.job.job.checkpoint;
  const int ranks = parallelism.mesh().world_size();
  return {.keeps_copies = true,
          .limits = {.ranks = ranks,
                     .target_step = facts.last_step,
                     .heartbeat_s = fault.heartbeat_seconds,
                     .step_timeout_s = fault.step_timeout_seconds,
                     .setup_timeout_s = fault.setup_timeout_seconds,
                     .data_timeout_s = fault.data_timeout_seconds,
                     .load_timeout_s = fault.load_timeout_seconds,
                     .evaluation_timeout_s = fault.evaluation_timeout_seconds,
                     .save_timeout_s = fault.save_timeout_seconds,
                     .start_timeout_s = start_timeout_s(ranks, fault),
                     .exit_timeout_s = checkpoint.exit_timeout_seconds},
          .saves = {.directory = facts.run.checkpoints(checkpoint)}};
}

std::vector<std::string> overrides_of(const AttemptFacts& facts) {
  std::vector<std::string> overrides = overrides_of(facts.job, facts.start.width);
  if (!facts.start.stage_layers.empty()) overrides.push_back(stage_layers_setting(facts.start.stage_layers));
  return overrides;
}

AttemptFile file_of(const AttemptFacts& facts, const ParallelSpec& parallelism) {
  ENSURE(facts.epoch > 0);
  const BeginFrom& begin = facts.begin;
  ENSURE(!begin.memory || begin.folder.empty(), "a state in memory and in {}", begin.folder);
  const std::string scratch = "trainctl." + facts.token.substr(0, 12);
  AttemptFile file{.epoch = facts.epoch,
                   .resume_from = begin.folder,
                   .from_store = begin.from_store,
                   .resume_manifest = facts.manifest,
                   .max_steps = facts.max_steps,
                   .new_data = facts.new_data,
                   .lineage_json = facts.lineage_json,
                   .threads_per_rank = parallelism.threads_per_rank,
                   .matmul_flops_per_s = facts.matmul_flops_per_s,
                   .overrides = overrides_of(facts),
                   .saves = facts.saves,
                   .mark = facts.token,
                   .session_folder = "/tmp/" + scratch,
                   .shared_memory_folder = "/dev/shm/" + scratch,
                   .beginnings = with_beginning(facts.beginnings, {facts.epoch, begin.step}),
                   .remedies = facts.remedies,
                   .disputes = facts.disputes,
                   .burn_in = facts.start.burn_in};
  if (begin.memory)
    file.memory = MemoryState{.step = begin.step,
                              .epoch = begin.memory->state.epoch,
                              .ranks = begin.memory->ranks,
                              .whole = facts.one_machine};
  return file;
}

LaunchInput launch_of(const AttemptFacts& facts, const AttemptPlan& plan) {
  LaunchInput launch = facts.launcher;
  launch.env = facts.job.job.launcher.env;
  launch.nccl_buffer_kib = facts.job.job.parallelism.nccl.buffer_kib;
  for (const AttemptPlan::Node& node : plan.nodes) launch.hosts.push_back({node.host, node.count});
  launch.network = network_of(facts, plan.nodes);
  launch.world_size = plan.limits.ranks;
  launch.run_directory = facts.run.path;
  launch.session_folder = plan.file.session_folder;
  launch.shared_memory_folder = plan.file.shared_memory_folder;
  return launch;
}

}  // namespace

bool is_reachable(const AttemptFacts& facts) {
  if (!facts.begin.memory || facts.one_machine) return true;
  const std::vector<std::string>& nodes = facts.begin.memory->nodes;
  return std::all_of(nodes.begin(), nodes.end(), [names = by_name(facts)](const std::string& node) {
    return server_of(names, node) != nullptr;
  });
}

AttemptPlan plan_attempt(const AttemptFacts& facts) {
  const ParallelSpec parallelism = at_width(facts.job, facts.start.width).job.parallelism;
  AttemptPlan plan = frame_of(facts, parallelism);
  plan.nodes = placed(facts, parallelism.mesh());
  plan.holders = holders_of(facts);
  plan.file = file_of(facts, parallelism);
  const ckpt::Partners partners = partners_of(facts, plan.nodes, parallelism.mesh());
  for (const auto& [node, partner] : partners.partner) {
    ENSURE(node != partner, "node {} would hold its own second copy", node);
    plan.nodes[size_t(node)].partner = partner;
  }
  plan.weakness = Problem::of(partners.weakness);
  plan.launch = launch_of(facts, plan);
  if (plan.nodes.size() > 1)
    for (AttemptPlan::Node& node : plan.nodes)
      node.environment = networks_of(facts, node, plan.launch.network);
  return plan;
}

AttemptPlan with_start(AttemptPlan plan, bool pmix, LaunchLine line) {
  plan.line = std::move(line);
  plan.pmix = plan.file.pmix = pmix;
  plan.limits.launcher = !pmix;
  plan.saves.epoch = plan.file.epoch;
  ENSURE(!plan.nodes.empty() && plan.limits.nodes.empty());
  int next = 0;
  for (const AttemptPlan::Node& node : plan.nodes) {
    // Those of an attach are as attempt.json says.
    ENSURE(plan.attach || (node.first == next && node.count > 0), "rank {} after {}", node.first, next);
    next += node.count;
    plan.limits.nodes.push_back({node.name, node.first, node.count});
    if (!plan.attach) plan.file.nodes.push_back({node.name, node.first, node.count});
  }
  ENSURE(plan.attach || next == plan.limits.ranks, "{} of {} ranks", next, plan.limits.ranks);
  return plan;
}

AttemptPlan plan_attach(const AttemptFacts& facts, const AttemptFile& file) {
  AttemptPlan plan = frame_of(facts, at_width(facts.job, facts.start.width).job.parallelism);
  plan.attach = true;
  plan.file = file;
  const ByName names = by_name(facts);
  for (const AttemptFile::Node& place : file.nodes) {
    const KnownNode& known = known_of(names, place.name);
    plan.nodes.push_back(node_of(facts, known, place.first, place.count));
    plan.nodes.back().missing = missing_from(known.hello, file.epoch).text_or_empty();
  }
  return with_start(std::move(plan), file.pmix, {});
}

wire::StartOrder start_order(const AttemptPlan& plan, size_t index) {
  ENSURE(index < plan.nodes.size(), "node {} of {}", index, plan.nodes.size());
  const std::vector<Beginning>& begin = plan.file.beginnings;
  wire::StartOrder order{.mark = plan.file.mark,
                         .pmix = plan.pmix,
                         .leads = index == 0,
                         .argv = plan.line.argv,
                         .environment = plan.line.environment,
                         .this_host = int(index),
                         .world_size = plan.limits.ranks,
                         .session_folder = plan.file.session_folder,
                         .shared_memory_folder = plan.file.shared_memory_folder,
                         .from_step = begin.empty() ? 0 : begin.back().step,
                         .keeps_copies = plan.keeps_copies,
                         .memory_ranks = plan.file.memory ? plan.file.memory->ranks : 0,
                         .holders = plan.holders};
  const AttemptPlan::Node& own = plan.nodes[index];
  order.environment.insert(order.environment.end(), own.environment.begin(), own.environment.end());
  for (const AttemptPlan::Node& node : plan.nodes) {
    order.hosts.push_back(node.host);
    order.ranks.push_back({node.first, node.count});
    if (node.partner == int(index) && order.partner_of.count == 0)
      order.partner_of = {node.first, node.count};
  }
  ENSURE(own.partner < int(plan.nodes.size()) && own.partner != int(index), "partner {} of node {}",
         own.partner, index);
  if (own.partner >= 0) order.partner = plan.nodes[size_t(own.partner)].pieces;
  return order;
}

Problem missing_from(const wire::NodeHello* hello, uint64_t epoch) {
  if (!hello) return Problem("it is not connected");
  return hello->epoch == epoch ? Problem::none() : Problem("its ranks are gone");
}

bool runs_ranks(const std::vector<AttemptPlan::Node>& places, int node) {
  return std::any_of(places.begin(), places.end(),
                     [&](const AttemptPlan::Node& place) { return place.node == node; });
}

}  // namespace trainctl
