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
  int slots = 0;            ///< ranks that it may run
  std::string switch_path;  ///< outermost first, "spine.leaf0" or Slurm's
                            ///< "spine.leaf0.NODE"; "": not known
};

/// Ranks first .. first + count - 1 on nodes[node]; local rank = rank - first.
struct RankRange {
  int node = 0, first = 0, count = 0;
};

struct Placement {
  std::vector<RankRange> ranges;  ///< by rank; a node without ranks has none
  int group = 1;                  ///< ranks that were kept together on a node: tp * cp, tp, or 1
  /// The range that holds `rank`, which must be placed.
  const RankRange& range_of(int rank) const;
};

struct PlacementRules {
  bool tensor_across_nodes = false;  ///< a tensor group may be cut by the end of a node
};

/// Ranks that a node with so many slots takes.
int ranks_on(int slots, int tensor, const PlacementRules& rules);

/// Either `placement` or `refusal`, one sentence that names what would fit.
struct PlacementResult {
  Placement placement;
  std::string refusal;
  bool ok() const { return refusal.empty(); }
};
/// Nodes are filled in the order given; what is left over at its end stays
/// empty (a spare).
PlacementResult place(const parallel::MeshShape& mesh, std::span<const ClusterNode> nodes,
                      const PlacementRules& rules);

/// An order of the nodes (indices) in which nodes below one switch are
/// neighbours, at every level of the tree. Switches, and nodes below one, keep
/// the order of their first appearance; nodes without a path come together
/// under no switch.
std::vector<int> order_by_switch(std::span<const ClusterNode> nodes);

/// A few lines, however large: how many ranks a node runs, which nodes stay
/// empty, how many nodes and switches a tensor group, a data-parallel group and
/// a pipeline boundary touch. Each line ends with a newline.
std::string describe_placement(const parallel::MeshShape& mesh, std::span<const ClusterNode> nodes,
                               const Placement& placement);

/// A file of switches: a line "NODE PATH" a node, `#` begins a comment.
/// Error(kUsage) with file and line.
std::map<std::string, std::string> parse_switch_file(const std::string& text, const std::string& file);

}  // namespace trainctl
