// What a run owes to the Slurm job around it: it saves before the job's time is over, and at its end it
// gives the job back to the queue or ends the chain of jobs behind it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/record/stop_request.h"
#include "runtime/supervise/slurm/last_save_time.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/slurm/slurm.h"

namespace trainctl {

/// What Slurm says about the job, asked once at the start.
struct SlurmFacts {
  std::optional<double> end_unix_s;  ///< nothing: no limit, or no answer
  std::vector<std::string> notes;    ///< for people: questions without an answer, options that the job lacks
};
/// Takes at most some seconds; a Slurm that does not answer is a note.
SlurmFacts ask_slurm(const SlurmAllocation& allocation);
/// Whether the batch script has an option `--no-kill` or `-k`.
bool has_no_kill(const std::string& script);

/// What the run's end means for the job.
struct SlurmTies {
  std::string job_id;                ///< "": none
  std::optional<double> end_unix_s;  ///< of the job's time
  bool requeue = false;              ///< a stop for the scheduler gives the job back to the queue
  std::string chain;                 ///< name of the jobs that wait for the end of this one
  /// This supervisor took the place of the batch script's, which ended or was lost: its own end does not end
  /// the job.
  bool orphan = false;
};

/// When a run that began at `begin_unix_s` is to be stopped: begin_of_last_save_unix_s, but not before half
/// of its time has passed, or a short job would never train.
double stop_unix_s(const EndOfTime& end, double begin_unix_s);

/// Wishes to stop that are no signals: the end of the job's time, and `trainctl stop` on another machine.
class OtherStops {
 public:
  OtherStops(const SlurmTies& ties, FileSystem& fs, Clock& clock, const RunDirectory& run);
  StopLevel read(const RunPace& pace, Console& console);
  bool time_is_up() const { return time_is_up_; }

 private:
  const SlurmTies& ties_;
  Clock& clock_;
  StopRequests requests_;
  const double begin_unix_s_;
  bool time_is_up_ = false;
};

/// The last acts after a run, when nothing of it is left and its lock is free.
struct LastActs {
  std::string requeue_job;   ///< to be given back to the queue; ends this process, too
  bool if_preempted = false; ///< only if Slurm takes its nodes for another job; else somebody ended it
  std::string cancel_chain;  ///< name of waiting jobs that have nothing to do any more
  std::string end_job;       ///< whose batch script is gone: to be cancelled when Slurm knows that, too
};
/// `for_scheduler`: it was stopped by the scheduler's warning or the end of its time, or too few nodes are
/// left.
LastActs last_acts(const SlurmTies& ties, int exit_code, bool for_scheduler);
/// Says on the console what it does; a refusal of Slurm's is a note.
void act(const LastActs& acts, Console& console);

}  // namespace trainctl
