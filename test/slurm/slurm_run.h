// A small run of the real trainctl under the Slurm of the tests, and what it must leave.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "test/support/fake_nodes.h"

namespace trainctl::test {

/// Eight ranks of a tiny model (TP2 x PP2 x DP2), 400 steps, a checkpoint every 5: the folder DIR gets job.json and
/// the runs in DIR/runs. One Slurm at a time.
class SlurmRun {
 public:
  /// `id` of the run; `settings` as -s takes them.
  SlurmRun(FakeSlurm& slurm, const std::string& id, std::vector<std::string> settings = {});

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
  bool reaches_step(int step, double seconds = 180);
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
  FakeSlurm& slurm_;
  std::string id_, directory_;
};

}  // namespace trainctl::test
