// On which nodes the ranks of an attempt run, and what follows from it: the attempt's options, its hosts,
// and the network settings of each node.
#pragma once
#include <string>
#include <vector>

#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/loop/supervise_plan.h"

namespace trainctl {

/// Appends to options.nodes: places the ranks of `mesh` on the nodes `names`, in that order.
/// Error(kPreflight) if they do not fit.
void place_ranks(AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet,
                 const parallel::MeshShape& mesh, const std::vector<std::string>& names);
/// Options of an attempt of a run that ends at `last_step`: limits, scratch folders, saves and the file for
/// its ranks. `parallelism`: at the width of the attempt. The caller fills in nodes, command line and
/// checkpoint.
AttemptOptions attempt_options(const SupervisePlan& plan, const RunDirectory& run,
                               const ParallelSpec& parallelism, int64_t last_step);
/// Chooses for each node of the attempt the one that holds second copies of its memory, if the job wants
/// them. Returns what they do not survive, one sentence; none: they survive the loss of any one node and of
/// any one data-parallel replica.
Problem place_second_copies(AttemptOptions& options, const SupervisePlan& plan,
                            const parallel::MeshShape& mesh);

/// The nodes of the attempt by name, with their ranks.
std::vector<AttemptFile::Node> nodes_of_attempt(const AttemptOptions& options, const Fleet& fleet);
/// The nodes of the attempt by their own host names, with the number of ranks on each.
std::vector<LaunchHost> hosts_of(const AttemptOptions& options, const Fleet& fleet);
/// The number of nodes on which ranks of an earlier supervisor's attempt still run; 0 if one of its nodes is
/// not in this fleet.
size_t nodes_there(const Fleet& fleet, const AttemptFile& file);
/// The nodes of that attempt. `missing` is set for nodes on which its ranks no longer run.
std::vector<AttemptOptions::Node> places_of(const Fleet& fleet, const AttemptFile& file);
/// launcher.network if it is given; otherwise the network of the agents' connections, "" if they differ.
std::string network_of(const AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet);
/// Adds to each node's environment the interface for NCCL and, if `network` is "", for OpenMPI. Variables in
/// launcher.env stay as they are.
void set_networks(AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet,
                  const std::string& network);

/// Whether `node` (index of the fleet) is one of `places`.
bool runs_ranks(const std::vector<AttemptOptions::Node>& places, int node);

}  // namespace trainctl
