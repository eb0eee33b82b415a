#include "runtime/supervise/loop/slurm_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/supervise/slurm/batch_host.h"
#include "runtime/supervise/slurm/slurm_commands.h"

namespace trainctl {

bool has_no_kill(const std::string& script) {
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("#SBATCH")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;)
      if (word == "--no-kill" || word == "-k") return true;
  }
  return false;
}

SlurmFacts ask_slurm(const SlurmAllocation& allocation) {
  SlurmFacts facts{.end_unix_s = allocation.end_unix_s};
  const SlurmCommands slurm;
  try {
    if (const auto job = slurm.job(allocation.job_id); job &&
        job->end_unix_s) facts.end_unix_s = job->end_unix_s;
  } catch (const Error& error) {
    facts.notes.push_back(fmt::format("{}: the end of the job's time is not known; a signal of Slurm's "
        "(sbatch "
                                      "--signal=B:USR1@300) still stops the run in time",
                                      error.what()));
  }
  if (allocation.place != SlurmPlace::batch_script || allocation.nodes.size() < 2) return facts;
  try {
    if (!has_no_kill(slurm.batch_script(allocation.job_id)))
      facts.notes.push_back(
          fmt::format("the script of Slurm job {} has no --no-kill: unless sbatch was given it, Slurm "
              "ends the job "
                      "soon after the loss of a node",
                      allocation.job_id));
  } catch (const Error&) {  // a site may hide scripts; this is advice only
  }
  return facts;
}

double stop_unix_s(const EndOfTime& end, double begin_unix_s) {
  const double half_unix_s = begin_unix_s + (end.deadline_unix_s - begin_unix_s) / 2;
  return std::max(begin_of_last_save_unix_s(end), half_unix_s);
}

OtherStops::OtherStops(const SlurmTies& ties, FileSystem& fs, Clock& clock, const RunDirectory& run,
                       FileWorker& files)
    : ties_(ties), clock_(clock), requests_(fs, clock, run, files), begin_unix_s_(clock.unix_s()) {}

StopLevel OtherStops::read(const RunPace& pace, Console& console) {
  if (ties_.end_unix_s && !time_is_up_) {
    const EndOfTime end{.deadline_unix_s = *ties_.end_unix_s, .saves_s = pace.saves_s,
        .step_s = pace.longest_step_s};
    time_is_up_ = clock_.unix_s() >= stop_unix_s(end, begin_unix_s_);
    if (time_is_up_)
      console.note(fmt::format("   the time of Slurm job {} is over in {}: saving and stopping", ties_.job_id,
                               short_duration(std::max(0.0, *ties_.end_unix_s - clock_.unix_s()))));
  }
  return std::max(time_is_up_ ? StopLevel::save_and_stop : StopLevel::none, requests_.read());
}

LastActs last_acts(const SlurmTies& ties, int exit_code, bool for_scheduler) {
  LastActs acts;
  const bool stopped = exit_code == exit_status(ErrorCode::kStopped);
  // SIGTERM alone may be a preemption, or somebody's stop or scancel.
  if (stopped && ties.requeue) acts.requeue_job = ties.job_id, acts.if_preempted = !for_scheduler;
  if (!stopped) acts.cancel_chain = ties.chain;
  if (ties.orphan) acts.end_job = ties.job_id;
  return acts;
}

namespace {

/// Whether it has been given back.
bool give_back(const LastActs& acts, Console& console) {
  if (acts.requeue_job.empty()) return false;
  if (acts.if_preempted && !SlurmCommands().is_preempted(acts.requeue_job)) return false;
  // Said before: the job's processes get SIGTERM at once.
  console.say(fmt::format("Slurm job {} goes back to the queue", acts.requeue_job));
  SlurmCommands().requeue(acts.requeue_job);
  return true;
}

}  // namespace

void act(const LastActs& acts, Console& console) {
  try {
    if (!acts.cancel_chain.empty()) SlurmCommands().cancel_waiting(acts.cancel_chain);
    if (give_back(acts, console) || acts.end_job.empty()) return;
    if (const auto allocation = allocation_from_environment(process_variables())) end_lost_job(*allocation);
  } catch (const Error& error) {
    console.note(fmt::format(" ! {}", error.what()));
  }
}

}  // namespace trainctl
