// Handles the loss of the batch host: the first node of a Slurm job, on which the batch script and the
// supervisor run. With --no-kill, Slurm then keeps the job RUNNING without a script until its time limit. So
// an agent requeues the job.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

enum class OrphanAct { wait, requeue, leave };

/// (name, state) of nodes, as from SlurmCommands::states_of.
using NodeStates = std::vector<std::pair<std::string, std::string>>;
/// Decides what the agent of the node `own` does with the job.
///   job      the job in Slurm; nullopt: Slurm no longer knows it
///   states   the nodes with which the job began, in order
///
///   leave     the job does not run any more
///   requeue   the batch host does not respond to Slurm, and `own` is the first of the job's other nodes that do
///   wait      otherwise: a supervisor that only lost its connection to `own` must keep its job
OrphanAct orphan_act(const std::string& own, const std::optional<SlurmJob>& job,
                     const std::string& batch_host, const NodeStates& states);

/// For a supervisor that replaced the one of the batch script and has ended the run: cancels the job when the
/// batch host does not respond to Slurm. While the batch host responds, the script goes on and ends the job
/// itself. Asks Slurm every few seconds, for at most half an hour or until SIGTERM. Blocks.
void end_lost_job(const SlurmAllocation& allocation);

/// For an agent that ended because no supervisor was heard for the grace time: requeues the job when
/// orphan_act says so. Asks Slurm every few seconds, for at most half an hour or until SIGTERM. Blocks.
void give_back_lost_job(const SlurmAllocation& allocation);

}  // namespace trainctl
