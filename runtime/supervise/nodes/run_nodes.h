// On which nodes a job may run, and how an agent comes to each: from its spec, its host file, or the Slurm
// job around it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/spec/fields/job.h"
#include "runtime/supervise/nodes/fleet.h"
#include "runtime/supervise/decide/placement.h"
#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

struct RunNodes {
  std::vector<ClusterNode> nodes;  ///< in the order of preference; at least one
  AgentStart start;
  bool one_machine = true;  ///< the only node is this machine
  /// Where the agents reach the supervisor: "ADDRESS:0"; "" on one machine, where a socket in a scratch
  /// folder does.
  std::string listen;
  std::optional<SlurmAllocation> slurm;  ///< whose nodes they are
};

/// The nodes of `launcher.hosts` or `launcher.hostfile` with their slots; none: neither is given. Looks no name up.
/// Error(kSpec) for a malformed or repeated host, Error(kPlan) where no width of the job fits.
std::vector<ClusterNode> listed_nodes(const JobSpec& job, FileSystem& fs);

/// Error(kSpec) for a malformed or repeated host, Error(kPreflight) for a name that does not resolve,
/// Error(kPlan) where a Slurm job is too small.
RunNodes nodes_of(const JobSpec& job, FileSystem& fs);

/// "node0", "node0:4" or, in a file, "node0 slots=4"; slots 0 where none are given. Error(kSpec) naming
/// `where`.
ClusterNode parse_host(const std::string& text, const std::string& where);

/// The slots of a node that says nothing: the mesh spread evenly, in whole tensor groups.
int even_slots(const JobSpec& job, int nodes);

/// "" where the job, or a narrower one that its spec allows, fits on `nodes`; else one sentence: what it
/// needs, what `place` ("launcher.hosts (2 nodes with 2 slots each)") has room for, what to do about it
/// (`more`), and the width that would fit.
std::string too_small(const JobSpec& job, const std::vector<ClusterNode>& nodes, const std::string& place,
                      const std::string& more);

}  // namespace trainctl
