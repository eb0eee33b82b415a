// Chooses the node that holds the second copy of another node's state in memory (tier L1), from mesh and
// placement.
//
// The copies of node n's ranks go to the memory of node partner[n]. `partner` is a permutation without fixed
// points: each node holds the copies of exactly one other node. So after the loss of any one node, every
// rank's state is still on some node. If possible, a node and its partner have no data-parallel replica in
// common. If that holds for all nodes, the state also survives the loss of any one replica with all its nodes
// (the nodes of a replica often share a rack, a switch or a job of the scheduler).
//
// Pure; safe from any thread. Source: pairs of checkpoint holders, Gemini (SOSP 2023), section 4; here for
// any placement.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace trainctl::ckpt {

struct Partners {
  std::map<int, int> partner;     ///< node -> the node that holds its copy; empty if there is no solution
  std::vector<int> same_replica;  ///< nodes whose partner shares a data-parallel replica with them, ascending
  /// "" if the state survives the loss of any one node; otherwise why not, one sentence.
  std::string problem;
  /// "" if the state also survives the loss of any one replica; otherwise why not, one sentence.
  std::string weakness;
  int64_t looks = 0;  ///< pairs of nodes at which the search looked: its cost
};

/// Chooses the partners; as many pairs as possible are in different replicas. Deterministic.
///   node_of_rank   [world_size] the node of each world rank, any numbers
Partners place_partners(const parallel::MeshShape& shape, const std::vector<int>& node_of_rank);

}  // namespace trainctl::ckpt
