#include "runtime/supervise/decide/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace trainctl {
namespace {

using parallel::MeshShape;

std::string mesh_words(const MeshShape& mesh) {
  return fmt::format("tensor {}{} x data {} x pipeline {}", mesh.tp,
                     mesh.cp > 1 ? fmt::format(" x context {}", mesh.cp) : "", mesh.dp, mesh.pp);
}

/// The switches above a node, outermost first; Slurm's address ends with the
/// node itself.
std::vector<std::string> switches_of(const ClusterNode& node) {
  std::vector<std::string> parts;
  std::istringstream path(node.switch_path);
  for (std::string part; std::getline(path, part, '.');) parts.push_back(part);
  if (!parts.empty() && parts.back() == node.name) parts.pop_back();
  return parts;
}

/// The innermost switch with all above it, as one text.
std::string leaf_of(const ClusterNode& node) { return fmt::format("{}", fmt::join(switches_of(node), ".")); }

int64_t ranks_that_fit(std::span<const ClusterNode> nodes, int group) {
  int64_t ranks = 0;
  for (const ClusterNode& node : nodes) ranks += std::max(0, node.slots) / group * group;
  return ranks;
}

std::string refuse(const MeshShape& mesh, std::span<const ClusterNode> nodes, int group) {
  const int needed = mesh.world_size();
  if (nodes.empty())
    return fmt::format("there is no node for the {} ({})", count_of(needed, "rank"), mesh_words(mesh));
  const auto widest =
      std::max_element(nodes.begin(), nodes.end(),
                       [](const ClusterNode& a, const ClusterNode& b) { return a.slots < b.slots; });
  const int64_t fit = ranks_that_fit(nodes, group);
  if (fit == 0)
    return fmt::format(
        "a tensor group of {} does not fit into a node: {}, the "
        "widest, has {}; use parallelism.tensor = {} or less, "
        "or allow tensor groups to cross nodes",
        count_of(group, "rank"), widest->name, count_of(widest->slots, "slot"), std::max(1, widest->slots));
  const int one_replica = mesh.tp * mesh.cp * mesh.pp;
  const int64_t replicas = fit / one_replica;
  const std::string what_fits = replicas > 0 ? fmt::format("parallelism.data = {} fits", replicas)
                                             : fmt::format("not even parallelism.data = 1 fits, it takes {}",
                                                           count_of(one_replica, "rank"));
  const std::string groups = group > 1 ? fmt::format(" in whole tensor groups of {}", group) : "";
  return fmt::format(
      "the mesh has {} ({}), and {} {} {}{}: {}, or add nodes with {} for {} "
      "more",
      count_of(needed, "rank"), mesh_words(mesh), count_of(int64_t(nodes.size()), "node"),
      nodes.size() == 1 ? "holds" : "hold", fit, groups, what_fits,
      group > 1 ? count_of(group, "slot") + " or a multiple" : "slots", count_of(needed - fit, "rank"));
}

/// How many different values `of(node)` takes over the nodes of ranks first ..
/// first + count - 1.
template <class Of>
int count_over(const Placement& placement, int first, int count, const Of& of) {
  std::set<std::string> seen;
  const auto begin = std::upper_bound(placement.ranges.begin(), placement.ranges.end(), first,
                                      [](int rank, const RankRange& r) { return rank < r.first + r.count; });
  for (auto it = begin; it != placement.ranges.end() && it->first < first + count; ++it)
    seen.insert(of(it->node));
  return int(seen.size());
}

/// "4 nodes", or "3 to 4 nodes".
std::string span_text(const std::vector<int>& counts, const char* noun, const char* plural) {
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  return (*least == *most ? "" : fmt::format("{} to ", *least)) + count_of(*most, noun, plural);
}

/// "node0 .. node3" of the nodes number `from` to `to` of a list of node
/// numbers.
std::string names_text(std::span<const ClusterNode> nodes, const std::vector<int>& list, size_t from,
                       size_t to) {
  const std::string& first = nodes[size_t(list[from])].name;
  return from == to ? first : fmt::format("{} .. {}", first, nodes[size_t(list[to])].name);
}

/// "4 nodes x 2 ranks (a .. d), 1 node x 1 rank (e)": neighbours with equal
/// counts together, at most `most` such runs.
std::string runs_text(std::span<const ClusterNode> nodes, const Placement& placement, int most) {
  std::vector<int> used;
  for (const RankRange& range : placement.ranges) used.push_back(range.node);
  std::string text;
  int runs = 0;
  for (size_t begin = 0; begin < used.size();) {
    size_t end = begin;
    while (end < used.size() && placement.ranges[end].count == placement.ranges[begin].count) ++end;
    if (runs++ == most)
      return text +
             fmt::format(", and {} more with other counts", count_of(int64_t(used.size() - begin), "node"));
    text +=
        fmt::format("{}{} x {} ({})", begin ? ", " : "", count_of(int64_t(end - begin), "node"),
                    count_of(placement.ranges[begin].count, "rank"), names_text(nodes, used, begin, end - 1));
    begin = end;
  }
  return text;
}

}  // namespace

const RankRange& Placement::range_of(int rank) const {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), rank,
                                   [](int r, const RankRange& range) { return r < range.first; });
  ENSURE(it != ranges.begin() && rank < std::prev(it)->first + std::prev(it)->count, "rank {} is not placed",
         rank);
  return *std::prev(it);
}

int ranks_on(int slots, int tensor, const PlacementRules& rules) {
  const int group = rules.tensor_across_nodes ? 1 : tensor;
  return std::max(0, slots) / group * group;
}

PlacementResult place(const MeshShape& mesh, std::span<const ClusterNode> nodes,
                      const PlacementRules& rules) {
  const int needed = mesh.world_size();
  ENSURE(mesh.tp > 0 && mesh.cp > 0, "tensor {} x context {}", mesh.tp, mesh.cp);
  const int smallest = rules.tensor_across_nodes ? 1 : mesh.tp;
  for (const int group : {mesh.tp * mesh.cp, mesh.tp, smallest}) {
    if (ranks_that_fit(nodes, group) < needed) continue;
    PlacementResult result;
    result.placement.group = group;
    int next = 0;
    for (size_t i = 0; i < nodes.size() && next < needed; ++i) {
      const int count = std::min(needed - next, std::max(0, nodes[i].slots) / group * group);
      if (count == 0) continue;
      result.placement.ranges.push_back({int(i), next, count});
      next += count;
    }
    ENSURE(next == needed, "{} of {} ranks are placed", next,
           needed);  // ranges ascend: each rank is on one node
    return result;
  }
  return {.refusal = refuse(mesh, nodes, smallest)};
}

std::vector<int> order_by_switch(std::span<const ClusterNode> nodes) {
  // Every switch gets the number of its first appearance below its parent;
  // nodes sort by these numbers, level by level.
  std::map<std::string, int> number_of;
  std::vector<std::vector<int>> keys(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::string path;
    for (const std::string& part : switches_of(nodes[i])) {
      path += "." + part;
      keys[i].push_back(number_of.try_emplace(path, int(number_of.size())).first->second);
    }
  }
  std::vector<int> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return keys[size_t(a)] < keys[size_t(b)]; });
  return order;
}

std::string describe_placement(const MeshShape& mesh, std::span<const ClusterNode> nodes,
                               const Placement& placement) {
  constexpr int kMostRuns = 3;
  const auto name = [&](int node) { return nodes[size_t(node)].name; };
  std::vector<std::string> leaves(nodes.size());
  bool known = true;
  for (const RankRange& range : placement.ranges) {
    leaves[size_t(range.node)] = leaf_of(nodes[size_t(range.node)]);
    known = known && !leaves[size_t(range.node)].empty();
  }
  const auto leaf = [&](int node) { return leaves[size_t(node)]; };
  std::string text = fmt::format("Nodes    {}\n", runs_text(nodes, placement, kMostRuns));

  // A stage is a run of ranks, and each data-parallel group of it reaches from
  // its first ranks to its last.
  const int stage = mesh.tp * mesh.cp * mesh.dp;
  std::vector<int> nodes_of_stage, switches_of_stage;
  for (int p = 0; p < mesh.pp; ++p) {
    nodes_of_stage.push_back(count_over(placement, p * stage, stage, name));
    switches_of_stage.push_back(known ? count_over(placement, p * stage, stage, leaf) : 0);
  }
  const bool whole = placement.group % mesh.tp == 0;
  text += fmt::format(
      "         a tensor group {} · a stage, with its data-parallel groups of "
      "{}, spans {}{}\n",
      whole ? "stays inside a node" : "may cross nodes, as allowed", mesh.dp,
      span_text(nodes_of_stage, "node", "nodes"),
      known ? " below " + span_text(switches_of_stage, "switch", "switches") : "");
  const size_t used = placement.ranges.size();
  if (used < nodes.size()) {
    std::vector<int> spare;
    std::vector<bool> busy(nodes.size());
    for (const RankRange& range : placement.ranges) busy[size_t(range.node)] = true;
    for (size_t i = 0; i < nodes.size(); ++i)
      if (!busy[i]) spare.push_back(int(i));
    text += fmt::format("         {} without ranks: {}\n", count_of(int64_t(spare.size()), "node"),
                        names_text(nodes, spare, 0, spare.size() - 1));
  }
  return text;
}

std::map<std::string, std::string> parse_switch_file(const std::string& text, const std::string& file) {
  std::map<std::string, std::string> paths;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string node, path, more;
    if (!(words >> node)) continue;
    if (!(words >> path) || words >> more)
      throw Error(ErrorCode::kUsage, fmt::format("{}:{}: a line of a file of switches is `NODE "
                                                 "PATH`, e.g. `node3 spine.leaf0`",
                                                 file, number));
    if (!paths.emplace(node, path).second)
      throw Error(ErrorCode::kUsage, fmt::format("{}:{}: node {} is named here a second time; "
                                                 "remove one of its lines",
                                                 file, number, node));
  }
  return paths;
}

}  // namespace trainctl
