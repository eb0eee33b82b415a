#include "runtime/plan/node_copies.h"

#include <algorithm>
#include <numeric>

#include "ckpt/partners.h"
#include "runtime/base/error.h"

namespace trainctl {

bool has_second_copies(const CheckpointSpec& checkpoint) {
  return checkpoint.memory != MemoryCopies::off && checkpoint.partner != PartnerCopies::off;
}

std::vector<NodeCopies> copies_of_nodes(const CheckpointSpec& checkpoint, const parallel::MeshShape& mesh,
                                        const JobPlan& plan, const std::vector<int>& ranks_of_node) {
  ENSURE(std::accumulate(ranks_of_node.begin(), ranks_of_node.end(), 0) == mesh.world_size(),
         "places for another number of ranks than {}", mesh.world_size());
  std::vector<NodeCopies> nodes(ranks_of_node.size());
  std::vector<int> node_of_rank;
  for (size_t node = 0; node < nodes.size(); ++node) {
    nodes[node].own_ranks = ranks_of_node[node];
    for (int k = 0; k < ranks_of_node[node]; ++k) {
      const int stage = parallel::position_of(mesh, int(node_of_rank.size())).pp;
      nodes[node].own += plan.stages[size_t(stage)].copies;
      node_of_rank.push_back(int(node));
    }
  }
  if (!has_second_copies(checkpoint)) return nodes;
  for (const auto& [node, partner] : ckpt::place_partners(mesh, node_of_rank).partner) {
    nodes[size_t(partner)].second_ranks = nodes[size_t(node)].own_ranks;
    nodes[size_t(partner)].second = nodes[size_t(node)].own;
  }
  return nodes;
}

NodeCopies most_copies(const std::vector<NodeCopies>& nodes) {
  const auto most =
      std::max_element(nodes.begin(), nodes.end(),
                       [](const NodeCopies& a, const NodeCopies& b) { return a.total() < b.total(); });
  return most == nodes.end() ? NodeCopies{} : *most;
}

}  // namespace trainctl
