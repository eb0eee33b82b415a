// The nodes that a job may use, and how their agents are started: from its spec, its host file, or the Slurm
// job in which this process runs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/supervise/decide/placement.h"
#include "runtime/supervise/nodes/fleet.h"
#include "runtime/supervise/nodes/node_need.h"
#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

struct RunNodes {
  std::vector<ClusterNode> nodes;  ///< in the order of preference; at least one
  AgentStart start;
  bool one_machine = true;  ///< the only node is this machine
  /// The address on which the supervisor listens for agents: "ADDRESS:PORT", port 0 for any free port; "" on
  /// one machine: a Unix socket in a scratch folder.
  std::string listen;
  std::optional<SlurmAllocation> slurm;  ///< the allocation of the nodes; nullopt: not from Slurm
};

/// The nodes of `launcher.hosts` or `launcher.hostfile` with their slots; empty if neither is given. Resolves
/// no names. Error(kSpec) for a malformed or repeated host, Error(kPlan) if no width of the job fits.
std::vector<ClusterNode> listed_nodes(const NodeNeed& need, FileSystem& fs);

/// The nodes of the job. Error(kSpec) for a malformed or repeated host, Error(kPreflight) for a name that
/// does not resolve, Error(kPlan) if no width of the job fits on the nodes.
RunNodes nodes_of(const NodeNeed& need, FileSystem& fs);

/// Parses "node0", "node0:4" or "node0 slots=4" (host file). Slots are 0 if none are given. Error(kSpec)
/// names `where`.
ClusterNode parse_host(const std::string& text, const std::string& where);

/// The slots of each of `nodes` nodes if none are given: the ranks spread evenly, in whole tensor groups.
int even_slots(const ParallelSpec& parallelism, int nodes);

/// None if the job, or a narrower one that its spec allows, fits on `nodes`; otherwise one sentence: what the
/// job needs, what the nodes can carry, what to do, and the width that would fit.
///   place   names the nodes: "launcher.hosts (2 nodes with 2 slots each)"
///   more    what to do to get more
Problem too_small(const NodeNeed& need, const std::vector<ClusterNode>& nodes, const std::string& place,
                  const std::string& more);

}  // namespace trainctl
