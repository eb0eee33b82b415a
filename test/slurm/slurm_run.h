// A small run of the real trainctl under the Slurm of the tests, and what it must leave.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "test/support/fake_nodes.h"

namespace trainctl::test {

/// Eight ranks of a tiny model (TP2 x PP2 x DP2), 60 steps, a checkpoint every 5: the folder DIR gets job.json and
/// the runs in DIR/runs. Nothing is silent or late on a slow machine, and a fault finds the run in its steps on a fast
/// one: where it is held a rank stops itself, and the others wait for it. One Slurm at a time.
class SlurmRun {
 public:
  /// `id` of the run; `settings` as -s takes them.
  SlurmRun(FakeSlurm& slurm, const std::string& id, std::vector<std::string> settings = {});
  /// A setting: rank 1 stops itself in these steps, of the epochs 1, 2, ... in turn.
  static std::string held(const std::vector<int>& steps);

  static std::string trainctl();
  /// Its twin, whose GPU is emulated.
  static std::string emulated_trainctl();
  /// trainctl on the login node, in the folder.
  Outcome run(std::vector<std::string> words, double seconds = 180);
  Child exec(std::vector<std::string> words);
  /// Submits a script with these lines of #SBATCH that ends in `exec trainctl launch job.json WORDS`. The job's id.
  std::string submit(const std::vector<std::string>& options, const std::string& words = "");
  std::string launch_line(const std::string& words = "") const;

  const std::string& directory() const { return directory_; }
  std::string path() const { return directory_ + "/runs/" + id_; }
  std::string file(const std::string& name) const { return read_file(path() + "/" + name); }
  /// What the job with this id has written.
  std::string output(const std::string& job) const { return read_file(directory_ + "/slurm-" + job + ".out"); }
  /// Steps in metrics.jsonl.
  int steps() const;
  /// Waits until the rank has stopped itself in that step.
  bool is_held(int step, double seconds = 180);
  /// Continues it; it may be gone.
  void release();
  /// The run has been asked to stop, so often.
  bool is_asked_to_stop(int times = 1, double seconds = 60);
  /// Whether the job ends in this state.
  bool job_ends(const std::string& job, const std::string& state = "COMPLETED", double seconds = 180);
  /// Until the run's last step is saved, in whichever job.
  bool finishes(double seconds = 180);
  /// events.jsonl: lines of this kind.
  int events(const std::string& kind) const;

  /// "" if the last checkpoint has the bits of a run on one machine that nothing disturbed; else what differs.
  std::string differs_from_undisturbed();
  /// Processes and files of trainctl on any node; "" if nothing is left. On `killed`, where Slurm killed the agent,
  /// scratch folders stay until the next run there.
  std::string left(int killed = -1);

 private:
  std::vector<pid_t> stopped_ranks() const;

  FakeSlurm& slurm_;
  std::string id_, directory_;
};

}  // namespace trainctl::test
