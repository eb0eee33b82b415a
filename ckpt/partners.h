// On which node the second copy of a node's state is held in memory (tier L1): a pure function of mesh and
// placement.
//
// The copies of node n's ranks go to the memory of node partner[n]. `partner` is a permutation without fixed
// points: each node holds exactly one other node's copies, and the loss of any one node leaves every rank's
// state on some node. Where placement allows, a node and its partner have no data-parallel replica in common.
// If that holds for all nodes, the loss of any one replica with all its nodes is survived too (a replica is
// often what shares a rack, a switch or a job of the scheduler).
//
// Pure; safe from any thread. Source: pairs of checkpoint holders, Gemini (SOSP 2023), section 4; here for
// any placement.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace trainctl::ckpt {

struct Partners {
  std::map<int, int> partner;     ///< node -> the node that holds its copy; empty if there is none
  std::vector<int> same_replica;  ///< nodes whose partner shares a data-parallel replica with them, ascending
  /// "" if the loss of any one node is survived; else one sentence that says why not.
  std::string problem;
  /// "" if the loss of any one replica is survived too; else one sentence that says why not.
  std::string weakness;
};

/// node_of_rank[r]: the node of world rank r, any numbers. Deterministic. As many pairs as possible lie in
/// different replicas.
Partners place_partners(const parallel::MeshShape& shape, const std::vector<int>& node_of_rank);

}  // namespace trainctl::ckpt
