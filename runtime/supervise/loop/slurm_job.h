// A run inside a Slurm job: it saves before the job's time limit, and at its end it requeues the job or
// cancels the waiting jobs of its chain.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/record/stop_request.h"
#include "runtime/supervise/slurm/last_save_time.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

/// What Slurm reports about the job at the start.
struct SlurmFacts {
  std::optional<double> end_unix_s;  ///< end of the job's time; nullopt: no limit, or Slurm did not answer
  std::vector<std::string> notes;    ///< for people: failed queries, options that the job lacks
};
/// Asks Slurm; takes at most two of SlurmCommands' query limits. A failed query becomes a note.
SlurmFacts ask_slurm(const SlurmAllocation& allocation);
/// Whether the batch script has the option `--no-kill` or `-k`.
bool has_no_kill(const std::string& script);

/// The Slurm job of a run, and what the end of the run does with it.
struct SlurmTies {
  std::string job_id;                ///< "": the run has no Slurm job
  std::optional<double> end_unix_s;  ///< end of the job's time; nullopt: not known
  bool requeue = false;              ///< requeue the job when the scheduler wants the run to stop
  std::string chain;                 ///< name of the jobs that wait for the end of this one; "": none
  /// This supervisor replaced that of the batch script, which ended or was lost. So its end does not end the
  /// job.
  bool orphan = false;
};

/// When to stop a run that began at `begin_unix_s`: at begin_of_last_save_unix_s(end), but not before half of
/// its time has passed, because otherwise a short job would never train.
double stop_unix_s(const EndOfTime& end, double begin_unix_s);

/// Stop requests that are not signals: the end of the job's time, and `trainctl stop` on another machine.
class OtherStops {
 public:
  OtherStops(const SlurmTies& ties, FileSystem& fs, Clock& clock, const RunDirectory& run, FileWorker& files);
  StopLevel read(const RunPace& pace, Console& console);
  bool time_is_up() const { return time_is_up_; }

 private:
  const SlurmTies& ties_;
  Clock& clock_;
  StopRequests requests_;
  const double begin_unix_s_;
  bool time_is_up_ = false;
};

/// Slurm commands to call after a run, when no process of it is left and its lock is free. "" means: do not.
struct LastActs {
  std::string requeue_job;   ///< job to requeue; this also ends the calling process
  bool if_preempted = false; ///< requeue only if Slurm is taking the job's nodes for another job
  std::string cancel_chain;  ///< name of waiting jobs to cancel, because the run needs no more jobs
  std::string end_job;       ///< job to cancel when Slurm has lost its batch host (end_lost_job)
};
/// `for_scheduler`: the run was stopped by the scheduler's warning, by the end of the job's time, or because
/// too few nodes are left.
LastActs last_acts(const SlurmTies& ties, int exit_code, bool for_scheduler);
/// Calls the commands and reports on the console. A failed command becomes a note.
void act(const LastActs& acts, Console& console);

}  // namespace trainctl
