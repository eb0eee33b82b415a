// The number of ranks that each node of a Slurm allocation may run. Pure; safe from any thread.
#pragma once
#include <vector>

#include "runtime/supervise/decide/placement.h"
#include "runtime/supervise/nodes/node_need.h"
#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

/// The nodes of the allocation with their slots, by the first rule that applies:
///   1. launcher.slots is given: that many on every node.
///   2. The job may use GPUs and the allocation has some: on every node as many as this node's GPUs carry.
///   3. Every node has enough CPUs: the ranks spread evenly over all nodes but `spares`.
///   4. Otherwise: one slot per CPU.
///
/// Error(kPlan), one sentence that says what would fit, if no width that the job may have fits.
std::vector<ClusterNode> nodes_for(const NodeNeed& need, const SlurmAllocation& allocation, int spares);

}  // namespace trainctl
