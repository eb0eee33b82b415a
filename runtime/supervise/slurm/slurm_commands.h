// Calls Slurm's commands: sbatch, squeue, scontrol, scancel, sinfo. Each call has a deadline and ends the
// command when it has passed: a controller that does not answer must not hold up the supervisor.
//
// Every failure is Error(kLauncher) with one sentence: no Slurm here, no answer in time, or refused, with
// Slurm's own words. Objects hold no state but the limits; safe from any thread. The pure parts are
// runtime/supervise/slurm/slurm.h and slurm_script.h.
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

  /// Submits `count` jobs with the same script; their ids. Where one is refused those before are cancelled.
  std::vector<std::string> submit(const std::string& script_path, int count = 1) const;
  /// Nothing: Slurm does not know the job (any more).
  std::optional<SlurmJob> job(const std::string& job_id) const;
  /// Puts the job back into the queue. From inside the job this ends the caller: SIGTERM at once, SIGKILL
  /// after KillWait; save before. It starts again after the site's cred_expire (120 s by default) or later.
  void requeue(const std::string& job_id) const;
  void cancel(const std::string& job_id) const;
  /// Whether the job has a script, so that Slurm can start it again.
  bool is_batch(const std::string& job_id) const;
  /// Whether Slurm has begun to take its nodes for another job.
  bool is_preempted(const std::string& job_id) const;
  /// The script of a batch job.
  std::string batch_script(const std::string& job_id) const;
  /// Of nodes, what Slurm thinks of them: "idle", "allocated", "down"; with '*' where they do not answer.
  std::vector<std::pair<std::string, std::string>> states_of(const std::vector<std::string>& nodes) const;
  /// Cancels this user's waiting jobs of that name: the rest of a chain.
  void cancel_waiting(const std::string& job_name) const;
  /// Names among `nodes` that Slurm knows: sbatch refuses an --exclude with any other.
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
