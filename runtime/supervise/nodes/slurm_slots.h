// How many ranks each node of a Slurm allocation may run, and whether a job fits there. Pure; safe from any
// thread.
#pragma once
#include <vector>

#include "runtime/spec/fields/job.h"
#include "runtime/supervise/decide/placement.h"
#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

/// The nodes of the allocation with their slots. `launcher.slots` wins. Else a run on GPUs has as many slots
/// on a node as its GPUs carry. Else, where each node has the CPUs for it, the mesh is spread evenly over all
/// nodes but `spares`; where nodes differ too much, each has a slot a CPU, in whole tensor groups.
///
/// Error(kPlan), one sentence that says what would fit, where no width that the job may have fits.
std::vector<ClusterNode> nodes_for(const JobSpec& job, const SlurmAllocation& allocation, int spares);

}  // namespace trainctl
