// The copies of the state in the memory of a run's nodes (ckpt/pieces.h): each node holds two slots, or one,
// for each of its own ranks and, in a run on several nodes, as many for each rank of one other node, whose
// partner it is (ckpt/partners.h).
//
// Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/plan/plan.h"

namespace trainctl {

/// What one node holds in /dev/shm. Bytes are those of all ranks together.
struct NodeCopies {
  int own_ranks = 0, second_ranks = 0;  ///< second: ranks of the other node
  uint64_t own = 0, second = 0;
  uint64_t total() const { return own + second; }
  /// The mean of the ranks of that node.
  uint64_t second_of_rank() const { return second_ranks > 0 ? second / uint64_t(second_ranks) : 0; }
  uint64_t own_of_rank() const { return own_ranks > 0 ? own / uint64_t(own_ranks) : 0; }
};

/// Whether the nodes of a run on several nodes hold second copies.
bool has_second_copies(const CheckpointSpec& checkpoint);

/// What each node holds. Each rank counts as the worst of its stage.
///   ranks_of_node   the number of ranks of each node, in the order of ranks; their sum is the world size
std::vector<NodeCopies> copies_of_nodes(const CheckpointSpec& checkpoint, const parallel::MeshShape& mesh,
                                        const JobPlan& plan, const std::vector<int>& ranks_of_node);

/// What the node holds that holds most.
NodeCopies most_copies(const std::vector<NodeCopies>& nodes);

}  // namespace trainctl
