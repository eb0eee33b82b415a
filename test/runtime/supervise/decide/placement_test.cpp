// Goal: every rank is on one node, tensor groups are whole, a mesh is refused
// only where it cannot fit and the refusal names what does, and nothing grows
// with the number of ranks. Method: all small meshes on all small ragged
// clusters, against a count by hand; seeded trees of switches; one large
// cluster.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <set>

#include "runtime/base/error.h"
#include "runtime/supervise/decide/placement.h"
#include "test/support/seed.h"

using namespace trainctl;
using parallel::MeshShape;

namespace {

std::vector<ClusterNode> nodes_with(const std::vector<int>& slots) {
  std::vector<ClusterNode> nodes;
  for (size_t i = 0; i < slots.size(); ++i)
    nodes.push_back({.name = fmt::format("n{}", i), .slots = slots[i]});
  return nodes;
}

int groups_in(const std::vector<int>& slots, int group) {
  int groups = 0;
  for (const int s : slots) groups += s / group;
  return groups;
}

void check_placed(const MeshShape& mesh, const std::vector<ClusterNode>& nodes, const PlacementRules& rules,
                  const Placement& p) {
  int next = 0, last_node = -1;
  bool whole = true;
  for (const RankRange& range : p.ranges) {
    whole = whole && range.first == next && range.node > last_node && range.count > 0 &&
            range.count <= nodes[size_t(range.node)].slots;
    if (!rules.tensor_across_nodes) whole = whole && range.first % mesh.tp == 0 && range.count % mesh.tp == 0;
    for (int rank = range.first; rank < range.first + range.count; ++rank)
      whole = whole && p.range_of(rank).node == range.node;
    next += range.count;
    last_node = range.node;
  }
  CHECK(whole);
  CHECK(next == mesh.world_size());
}

}  // namespace

TEST_CASE(
    "every small mesh on every small cluster is placed whole, or refused "
    "because it cannot fit") {
  int placed = 0, refused = 0;
  for (int code = 0; code < 6 * 6 * 6; ++code)
    for (int shape = 0; shape < 3 * 2 * 4 * 3; ++shape)
      for (const bool across : {false, true}) {
        const std::vector<int> slots = {code % 6, code / 6 % 6, code / 36};
        const MeshShape mesh = {
            .tp = shape % 3 + 1, .cp = shape / 3 % 2 + 1, .dp = shape / 6 % 4 + 1, .pp = shape / 24 + 1};
        const std::vector<ClusterNode> nodes = nodes_with(slots);
        const PlacementRules rules = {.tensor_across_nodes = across};
        const int group = across ? 1 : mesh.tp;
        const int fit = groups_in(slots, group) * group;
        const PlacementResult result = place(mesh, nodes, rules);
        INFO(fmt::format("slots {} {} {} tp {} cp {} dp {} pp {} across {}: {}", slots[0], slots[1], slots[2],
                         mesh.tp, mesh.cp, mesh.dp, mesh.pp, across, result.refusal));
        REQUIRE(result.ok() == (fit >= mesh.world_size()));
        if (result.ok()) {
          ++placed;
          check_placed(mesh, nodes, rules, result.placement);
          // Context groups are whole wherever they can be.
          const int both = mesh.tp * mesh.cp;
          CHECK((result.placement.group == both) ==
                (groups_in(slots, both) * both >= mesh.world_size() || both == group));
          continue;
        }
        ++refused;
        const int replicas = fit / (mesh.tp * mesh.cp * mesh.pp);
        if (fit > 0 && replicas > 0)
          CHECK(result.refusal.find(fmt::format("parallelism.data = {} fits", replicas)) !=
                std::string::npos);
        MeshShape smaller = mesh;
        smaller.dp = replicas;
        if (replicas > 0) CHECK(place(smaller, nodes, rules).ok());
        smaller.dp = replicas + 1;
        CHECK(!place(smaller, nodes, rules).ok());
      }
  CHECK(placed > 5000);
  CHECK(refused > 5000);
}

TEST_CASE("a refusal says in one sentence what is there and what would fit") {
  const MeshShape mesh = {.tp = 4, .dp = 4, .pp = 2};
  CHECK(place(mesh, {}, {}).refusal == "there is no node for the 32 ranks (tensor 4 x data 4 x pipeline 2)");
  CHECK(place(mesh, nodes_with({3, 2}), {}).refusal ==
        "a tensor group of 4 ranks does not fit into a node: n0, the widest, "
        "has 3 slots; use parallelism.tensor = 3 or less, or "
        "allow tensor groups to cross nodes");
  CHECK(place(mesh, nodes_with({8, 9, 7}), {}).refusal ==
        "the mesh has 32 ranks (tensor 4 x data 4 x pipeline 2), and 3 nodes "
        "hold 20 in whole tensor groups of 4: "
        "parallelism.data = 2 fits, or add nodes with 4 slots or a multiple "
        "for 12 ranks more");
  CHECK(place(mesh, nodes_with({6}), {.tensor_across_nodes = true}).refusal ==
        "the mesh has 32 ranks (tensor 4 x data 4 x pipeline 2), and 1 node "
        "holds 6: not even parallelism.data = 1 fits, it takes "
        "8 ranks, or add nodes with slots for 26 ranks more");
}

TEST_CASE(
    "nodes below one switch become neighbours at every level and keep "
    "their order") {
  for (const uint64_t seed : test::test_seeds(300)) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return int(random() % unsigned(n)); };
    std::vector<ClusterNode> nodes;
    for (int i = 0, n = 1 + below(12); i < n; ++i) {
      ClusterNode node = {.name = fmt::format("n{}", i), .slots = 8};
      const int depth = below(4);
      for (int level = 0; level < depth; ++level)
        node.switch_path += fmt::format("{}s{}", level ? "." : "", below(3));
      if (depth && below(2)) node.switch_path += "." + node.name;  // as Slurm writes it
      nodes.push_back(node);
    }
    const std::vector<int> order = order_by_switch(nodes);
    INFO("TRAINCTL_TEST_SEED=" << seed);
    REQUIRE(std::set<int>(order.begin(), order.end()).size() == nodes.size());
    // Two nodes below a switch have no node of another one between them.
    const auto prefix = [&](int node, int level) {
      std::string path = nodes[size_t(node)].switch_path;
      if (path.ends_with("." + nodes[size_t(node)].name)) path.erase(path.rfind('.'));
      for (size_t at = 0; at < path.size(); ++at)
        if (path[at] == '.' && level-- == 0) return path.substr(0, at);
      return level == 0 && !path.empty() ? path : std::string();
    };
    for (int level = 0; level < 3; ++level) {
      std::map<std::string, std::vector<size_t>> places;
      for (size_t i = 0; i < order.size(); ++i)
        if (const std::string key = prefix(order[i], level); !key.empty()) places[key].push_back(i);
      for (const auto& [key, at] : places) CHECK(at.back() - at.front() + 1 == at.size());
    }
    for (size_t i = 1; i < order.size(); ++i)
      if (nodes[size_t(order[i])].switch_path.empty() && nodes[size_t(order[i - 1])].switch_path.empty())
        CHECK(order[i - 1] < order[i]);
  }
}

TEST_CASE("a placement of 16384 ranks on 2048 nodes is 2048 ranges and a few lines of text") {
  std::vector<ClusterNode> nodes;
  for (int i = 0; i < 2050; ++i)
    nodes.push_back({.name = fmt::format("node{}", i),
                     .slots = 8,
                     .switch_path = fmt::format("spine{}.leaf{}", i / 512, i / 16)});
  const MeshShape mesh = {.tp = 8, .dp = 256, .pp = 8};
  const PlacementResult result = place(mesh, nodes, {});
  REQUIRE(result.ok());
  CHECK(result.placement.ranges.size() == 2048);
  CHECK(result.placement.range_of(16383).node == 2047);
  CHECK(describe_placement(mesh, nodes, result.placement) ==
        "Nodes    2048 nodes x 8 ranks (node0 .. node2047)\n"
        "         a tensor group stays inside a node · a stage, with its "
        "data-parallel groups of 256, spans 256 nodes below 16 "
        "switches\n"
        "         2 nodes without ranks: node2048 .. node2049\n");
}

TEST_CASE("a ragged placement is described by a few runs of equal nodes") {
  const std::vector<ClusterNode> nodes = nodes_with({2, 2, 3, 4, 5, 6});
  const MeshShape mesh = {.tp = 2, .dp = 3, .pp = 3};
  const PlacementResult result = place(mesh, nodes, {});
  REQUIRE(result.ok());
  CHECK(describe_placement(mesh, nodes, result.placement) ==
        "Nodes    3 nodes x 2 ranks (n0 .. n2), 3 nodes x 4 ranks (n3 .. n5)\n"
        "         a tensor group stays inside a node · a stage, with its data-parallel groups of 3, spans 2 "
        "to 3 "
        "nodes\n");
}

TEST_CASE("a file of switches is read, and its mistakes are located") {
  const auto paths = parse_switch_file("# ours\nn0 spine.leaf0\n\n n1\tspine.leaf1 # far\n", "switches");
  CHECK(paths == std::map<std::string, std::string>{{"n0", "spine.leaf0"}, {"n1", "spine.leaf1"}});
  for (const auto& [text, line] : {std::pair("n0", 1), {"n0 a b", 1}, {"n0 a\nn0 b", 2}}) try {
      parse_switch_file(text, "switches");
      FAIL("accepted: " << text);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find(fmt::format("switches:{}: ", line)) == 0);
    }
}
