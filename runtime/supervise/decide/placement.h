// Placement: which ranks run on which node.
//
// Ranks go in order (fastest first: tp, cp, dp, pp) onto nodes in order, and
// each node takes as many whole tensor groups as its slots hold. So a tensor
// group lies inside a node, neighbours of a data-parallel group share a node,
// and a pipeline stage is a run of neighbouring nodes. Where all nodes together
// hold whole (tp x cp) groups, those are kept inside a node too.
//
// A placement is one range of ranks a node: its size and the work to make it
// grow with the number of nodes, never with the number of ranks. Pure; safe
// from any thread.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace trainctl {

struct ClusterNode {
  std::string name;
  int slots = 0;            ///< maximum number of ranks on it
  std::string switch_path;  ///< outermost first, "spine.leaf0" or Slurm's
                            ///< "spine.leaf0.NODE"; "": not known
};

/// Ranks first .. first + count - 1 on nodes[node]; local rank = rank - first.
struct RankRange {
  int node = 0, first = 0, count = 0;
};

struct Placement {
  std::vector<RankRange> ranges;  ///< in the order of ranks; a node without ranks has no range
  int group = 1;                  ///< so many consecutive ranks share a node: tp * cp, tp, or 1
  /// The range that contains `rank`, 0 <= rank < world size.
  const RankRange& range_of(int rank) const;
};

struct PlacementRules {
  bool tensor_across_nodes = false;  ///< a tensor group may span nodes
};

/// How many ranks a node with `slots` slots takes.
int ranks_on(int slots, int tensor, const PlacementRules& rules);

/// Either `placement` or `refusal`, one sentence that names what would fit.
struct PlacementResult {
  Placement placement;
  std::string refusal;
  bool ok() const { return refusal.empty(); }
};
/// Fills the nodes in the given order. Nodes at the end may stay empty
/// (spares).
PlacementResult place(const parallel::MeshShape& mesh, std::span<const ClusterNode> nodes,
                      const PlacementRules& rules);

/// The indices of the nodes in an order in which nodes below one switch are
/// neighbours, at every level of the tree. Switches, and the nodes below a
/// switch, keep the order of their first appearance. Nodes without a path form
/// one group.
std::vector<int> order_by_switch(std::span<const ClusterNode> nodes);

/// A description in a few lines for a cluster of any size: how many ranks a
/// node runs, which nodes stay empty, how many nodes and switches a tensor
/// group, a data-parallel group and a pipeline boundary touch. Each line ends
/// with a newline.
std::string describe_placement(const parallel::MeshShape& mesh, std::span<const ClusterNode> nodes,
                               const Placement& placement);

/// Parses a file of switches, one line "NODE PATH" per node; `#` begins a
/// comment. Returns the path of each node. Error(kUsage) with file and line.
std::map<std::string, std::string> parse_switch_file(const std::string& text, const std::string& file);

}  // namespace trainctl
