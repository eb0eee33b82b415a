// What is left of a run's Slurm job when its first node, where the batch script and the supervisor ran, is
// lost: under --no-kill Slurm keeps the job RUNNING without a script until its time is over. An agent gives
// it back.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

enum class OrphanAct { wait, requeue, leave };

/// What the agent of `own` does now. `job`: as Slurm has it, nothing where Slurm has forgotten it; `states`:
/// of the nodes that the job began with, the first of them the batch host, as SlurmCommands::states_of gives
/// them.
///
///   leave     the job is not running any more
///   requeue   Slurm hears nothing from the batch host, and of the job's other nodes that it hears, `own` is
///   first
///   wait      else: a supervisor that is only cut off from `own` must not lose its job
using NodeStates = std::vector<std::pair<std::string, std::string>>;
OrphanAct orphan_act(const std::string& own, const std::optional<SlurmJob>& job,
                     const std::string& batch_host, const NodeStates& states);

/// For a supervisor that has taken the place of the batch script's and has ended the run: cancels the job
/// when Slurm hears nothing from its batch host. Where Slurm hears it, the script goes on and ends the job.
/// Asks Slurm every few seconds, at most for half an hour, or until SIGTERM.
void end_lost_job(const SlurmAllocation& allocation);

/// For an agent that has ended everything since it heard nothing for its grace time: asks Slurm every few
/// seconds, at most for half an hour, or until SIGTERM.
void give_back_lost_job(const SlurmAllocation& allocation);

}  // namespace trainctl
