#include "runtime/supervise/nodes/run_nodes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/supervise/nodes/own_address.h"
#include "runtime/supervise/nodes/slurm_slots.h"

namespace trainctl {
namespace {

std::string own_name() {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  return host;
}

[[noreturn]] void malformed(const std::string& text, const std::string& where) {
  throw Error(ErrorCode::kSpec, fmt::format("{} is no node: \"{}\"; write NAME or NAME:SLOTS", where, text));
}

std::vector<ClusterNode> read_host_file(const std::string& path, FileSystem& fs) {
  std::vector<ClusterNode> nodes;
  std::istringstream lines(fs.read_text(path));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) continue;
    const size_t end = line.find_last_not_of(" \t\r");
    nodes.push_back(parse_host(line.substr(begin, end - begin + 1), fmt::format("{}:{}", path, number)));
  }
  if (nodes.empty()) throw Error(ErrorCode::kSpec, fmt::format("launcher.hostfile {} names no node", path));
  return nodes;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// Where the supervisor listens: nothing listens beyond the network that leads to the nodes.
std::string listen_address(const std::vector<ClusterNode>& nodes) {
  for (const ClusterNode& node : nodes)
    if (!is_this_machine(node.name)) return own_address_towards(node.name) + ":0";
  return "";
}

/// Two names of one machine would be two agents in each other's way. Ends at the first name that does not
/// resolve: that is refused elsewhere.
void refuse_two_names(const std::vector<ClusterNode>& nodes) {
  std::map<std::string, const ClusterNode*> seen;
  for (const ClusterNode& node : nodes) {
    const std::string address = is_this_machine(node.name) ? "here" : address_of(node.name);
    if (address.empty()) return;
    const auto [other, is_new] = seen.emplace(address, &node);
    if (is_new) continue;
    throw Error(
        ErrorCode::kSpec,
        fmt::format("{} and {} are two names of one machine{}; name it once, with all its slots ({}:{})",
                    other->second->name, node.name, address == "here" ? "" : " (" + address + ")",
                    other->second->name, other->second->slots + node.slots));
  }
}

/// The nodes of the Slurm job around this process.
RunNodes nodes_of(const NodeNeed& need, SlurmAllocation allocation) {
  RunNodes result;
  result.nodes = nodes_for(need, allocation, need.launcher.slurm.spares);
  result.start.way = AgentStart::Way::slurm;
  result.one_machine = allocation.nodes.size() == 1 && allocation.nodes[0].name == allocation.this_node;
  if (result.one_machine) {
    result.start.way = AgentStart::Way::here;
  } else {
    if (find_program("srun").empty())
      throw Error(ErrorCode::kPreflight,
                  fmt::format("Slurm job {} has {} nodes and srun, which starts an agent on each, is not on PATH; add "
                              "Slurm's bin folder to PATH, or name the nodes in launcher.hosts",
                              allocation.job_id, allocation.nodes.size()));
    try {
      result.listen = listen_address(result.nodes);
    } catch (const Error& error) {
      throw Error(
          error.code(),
          fmt::format("{}; it is a node of Slurm job {} (SLURM_JOB_NODELIST): if that job is over, unset "
                      "SLURM_JOB_ID, or name the nodes in launcher.hosts",
                      error.what(), allocation.job_id));
    }
  }
  result.slurm = std::move(allocation);
  return result;
}

}  // namespace

ClusterNode parse_host(const std::string& text, const std::string& where) {
  ClusterNode node;
  std::string slots;
  if (const size_t space = text.find_first_of(" \t"); space != std::string::npos) {
    node.name = text.substr(0, space);
    const size_t equals = text.find("slots=", space);
    if (equals == std::string::npos) malformed(text, where);
    slots = text.substr(equals + 6);
  } else if (const size_t colon = text.find(':'); colon != std::string::npos) {
    node.name = text.substr(0, colon);
    slots = text.substr(colon + 1);
    if (slots.empty()) malformed(text, where);
  } else {
    node.name = text;
  }
  const bool number = slots.size() <= 6 && slots.find_first_not_of("0123456789") == std::string::npos;
  if (node.name.empty() || !number || node.name.starts_with('-') ||
      node.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") !=
          std::string::npos)
    malformed(text, where);
  if (!slots.empty()) node.slots = std::stoi(slots);
  if (!slots.empty() && node.slots == 0) malformed(text, where);
  return node;
}

int even_slots(const ParallelSpec& parallelism, int nodes) {
  const int ranks = parallelism.mesh().world_size(), group = parallelism.tensor;
  const int even = (ranks + nodes - 1) / nodes;
  return (even + group - 1) / group * group;
}

Problem too_small(const NodeNeed& need, const std::vector<ClusterNode>& nodes, const std::string& place,
                  const std::string& more) {
  const ParallelSpec& p = need.parallelism;
  const int group = need.group();
  int room = 0;
  for (const ClusterNode& node : nodes) room += ranks_on(node.slots, group, {});
  const int ranks = need.use.ranks, replica = ranks / p.data;
  const int data = std::min(p.data, room / replica);
  if (data == p.data || (need.elastic && data >= 1)) return Problem::none();
  const std::string fits =
      data > 0 ? fmt::format("take -s parallelism.data={} -s parallelism.world_size={}, which fits", data,
                             data * replica)
               : fmt::format("make tensor{} and pipeline smaller: one replica alone has {}",
                             p.context > 1 ? ", context" : "", count_of(replica, "rank"));
  return Problem(
      fmt::format("the mesh needs {} and {} has room for {} in whole tensor groups of {}; {}, or {}",
                  count_of(ranks, "rank"), place, room, p.tensor, more, fits));
}

namespace {

/// A host list stays as it is, so a job that does not fit there is refused before it waits for nodes.
void refuse_small_list(const NodeNeed& need, const std::vector<ClusterNode>& nodes) {
  int slots = 0;
  for (const ClusterNode& node : nodes) slots += node.slots;
  const std::string place =
      fmt::format("{} ({} with {})", need.launcher.hosts.empty() ? "launcher.hostfile" : "launcher.hosts",
                  count_of(int64_t(nodes.size()), "node"), count_of(slots, "slot"));
  const Problem problem = too_small(need, nodes, place, "name more nodes, give nodes more slots");
  if (problem.exists()) throw Error(ErrorCode::kPlan, problem.text());
}

}  // namespace

std::vector<ClusterNode> listed_nodes(const NodeNeed& need, FileSystem& fs) {
  const LauncherSpec& launcher = need.launcher;
  std::vector<ClusterNode> nodes;
  for (const std::string& host : launcher.hosts) nodes.push_back(parse_host(host, "launcher.hosts"));
  if (nodes.empty() && !launcher.hostfile.empty()) nodes = read_host_file(launcher.hostfile, fs);
  if (nodes.empty()) return nodes;
  std::set<std::string> seen;
  for (const ClusterNode& node : nodes)
    if (!seen.insert(node.name).second)
      throw Error(
          ErrorCode::kSpec,
          fmt::format("the node {} is named twice; name each node once, with all its slots", node.name));
  const int given = launcher.slots;
  const int even = given > 0 ? given : even_slots(need.parallelism, int(nodes.size()));
  for (ClusterNode& node : nodes)
    if (node.slots == 0) node.slots = even;
  refuse_small_list(need, nodes);
  return nodes;
}

RunNodes nodes_of(const NodeNeed& need, FileSystem& fs) {
  RunNodes result;
  result.nodes = listed_nodes(need, fs);
  if (result.nodes.empty())
    if (auto allocation = allocation_from_environment(process_variables()))
      return nodes_of(need, std::move(*allocation));
  if (result.nodes.empty()) {
    result.nodes.push_back({own_name(), need.use.ranks, ""});
    return result;
  }
  const std::optional<std::string>& shell = need.launcher.shell.command();
  result.start = {.way = AgentStart::Way::shell, .shell = words_of(shell.value_or(""))};
  result.one_machine = result.nodes.size() == 1 && is_this_machine(result.nodes[0].name);
  if (result.one_machine) {
    result.start.way = AgentStart::Way::here;
    return result;
  }
  if (!shell) {
    // The names of nodes that are not there yet lead nowhere.
    result.start.way = AgentStart::Way::awaited;
    result.listen = fmt::format("0.0.0.0:{}", need.launcher.port);
    return result;
  }
  refuse_two_names(result.nodes);
  result.listen = listen_address(result.nodes);
  if (need.launcher.port > 0)
    result.listen =
        fmt::format("{}:{}", result.listen.substr(0, result.listen.rfind(':')), need.launcher.port);
  return result;
}

}  // namespace trainctl
