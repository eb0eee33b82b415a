// The nodes of a run: how the fleet is made, where the ranks of an attempt run, what each node needs to know
// of the network, and how all that is shown.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/machine/session.h"
#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/loop/supervisor.h"

namespace trainctl {

Fleet::Options fleet_options(const SupervisePlan& plan, const RunDirectory& run,
                             const SessionFolders& folders);
/// Serves the fleet until `enough` holds, at most for `limit_s`. Whether it holds.
bool await_agents(Fleet& fleet, Clock& clock, double limit_s, const std::function<bool()>& enough);

/// Fills in options.nodes: the ranks of `job` on the nodes with these names, in that order. Error(kPreflight)
/// if they do not fit.
void place_ranks(AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet, const JobSpec& job,
                 const std::vector<std::string>& names);
/// An attempt of a run that ends at `last_step`: its limits, its scratch folders and what its ranks read.
/// Where it runs and begins is left to the caller.
AttemptOptions attempt_options(const SupervisePlan& plan, const RunDirectory& run, const JobSpec& job,
                               int64_t last_step);
/// Those nodes as they call themselves, with the numbers of their ranks.
std::vector<LaunchHost> hosts_of(const AttemptOptions& options, const Fleet& fleet);
/// Of an attempt that a supervisor before has left: on how many of its nodes its ranks run still; 0 where one
/// of them is no node of this fleet.
size_t nodes_there(const Fleet& fleet, const AttemptFile& file);
/// Its nodes; those where nothing of it runs any more are marked.
std::vector<AttemptOptions::Node> places_of(const Fleet& fleet, const AttemptFile& file);
/// The one network of all connections of agents, "" where they differ.
std::string network_of(const AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet);
/// What differs between nodes: the name of the interface that leads to the others.
void set_networks(AttemptOptions& options, const SupervisePlan& plan, const Fleet& fleet,
                  const std::string& network);

/// Whether the node is one of an attempt's.
bool runs_ranks(const std::vector<AttemptOptions::Node>& places, int node);

/// The fields of the event node_up: what the node has, and its clock.
std::string node_up_json(const Fleet& fleet, int node);

/// For the status: each node of the pool, with its ranks where it is one of `places` of the attempt that
/// runs.
std::vector<NodeStatus> node_statuses(const Recovery& recovery, const Fleet& fleet,
                                      const std::vector<AttemptOptions::Node>& places, Clock& clock);

}  // namespace trainctl
