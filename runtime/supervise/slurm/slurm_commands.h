// SlurmCommands calls Slurm's commands: sbatch, squeue, scontrol, scancel, sinfo. Each call has a limit,
// after which it ends the command, so that a controller that does not answer cannot block the supervisor.
//
// Every failure is Error(kLauncher) with one sentence: the command is missing, did not answer in time, or
// refused (with Slurm's message). Objects have no state but the limits; safe from any thread. The pure parts
// are in runtime/supervise/slurm/slurm.h and slurm_script.h.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervise/slurm/slurm.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {

class SlurmCommands {
 public:
  struct Limits {
    double query_s = 10;   ///< squeue, sinfo
    double change_s = 30;  ///< sbatch, scontrol, scancel
  };
  SlurmCommands() = default;
  explicit SlurmCommands(const Limits& limits) : limits_(limits) {}

  /// Whether sbatch is on PATH.
  static bool present();

  /// Submits `count` jobs with the same script and returns their ids. If one is refused, cancels the others.
  std::vector<std::string> submit(const std::string& script_path, int count = 1) const;
  /// nullopt if Slurm does not know the job, or no longer.
  std::optional<SlurmJob> job(const std::string& job_id) const;
  /// Puts the job back into the queue. If the caller is inside the job, this ends the caller: SIGTERM at
  /// once, SIGKILL after KillWait. So save before the call. The job starts again after the site's cred_expire
  /// (120 s by default) or later.
  void requeue(const std::string& job_id) const;
  void cancel(const std::string& job_id) const;
  /// Whether the job has a batch script, so that Slurm can start it again.
  bool is_batch(const std::string& job_id) const;
  /// Whether Slurm has begun to take the job's nodes for another job.
  bool is_preempted(const std::string& job_id) const;
  /// The script of a batch job.
  std::string batch_script(const std::string& job_id) const;
  /// (name, state) of each node: "idle", "allocated", "down"; '*' at the end if the node does not respond to
  /// Slurm.
  std::vector<std::pair<std::string, std::string>> states_of(const std::vector<std::string>& nodes) const;
  /// Cancels this user's waiting jobs with that name (the rest of a chain).
  void cancel_waiting(const std::string& job_name) const;
  /// ClusterName of the site's configuration; "" if it has none.
  std::string cluster_name() const;
  /// Those of `nodes` that Slurm knows. sbatch refuses other names in --exclude.
  std::vector<std::string> known_of(const std::vector<std::string>& nodes) const;

 private:
  struct Answer {
    int status = 0;  ///< exit status; 128 + n when killed by signal n
    std::string output;
  };
  Answer call(const std::vector<std::string>& command, double limit_s) const;
  std::string must(const std::vector<std::string>& command, double limit_s) const;
  Limits limits_;
};

}  // namespace trainctl
