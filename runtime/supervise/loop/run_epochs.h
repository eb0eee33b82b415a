// RunEpochs begins each epoch of a run in its records: it numbers the epoch, and moves the files of steps
// after its state aside. An epoch that a supervisor before has begun is taken over. One thread.
#pragma once
#include "runtime/supervise/loop/run_checkpoints.h"
#include "runtime/supervise/loop/run_source.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

class RunEpochs {
 public:
  /// All must outlive it. `source`: the state from which the next epoch goes on.
  RunEpochs(SupervisedRun& run, const RunSource& source, RunCheckpoints& checkpoints);

  /// Records that the attempt before has failed, and that `start` is the next one. Call it before begin.
  void restart(const StartAttempt& start, int restarts);
  /// Records the next epoch, of `ranks` ranks. Files of steps after the source's are moved aside.
  void begin(int ranks);
  /// Takes the epoch of `file` over, whose ranks run: status and care go on where it is.
  void attach(const AttemptFile& file);

 private:
  SupervisedRun& run_;
  const RunSource& source_;
  RunCheckpoints& checkpoints_;
};

/// The newest epoch that the run has used; 0: none.
uint64_t last_epoch(FileSystem& fs, const RunDirectory& run);

/// What attempt.json says of the newest attempt; nullopt: there was none. Of a damaged one what events.jsonl
/// knows: the epoch and where the epochs began.
struct NewestAttempt {
  AttemptFile file;
  Problem damage = Problem::none();
};
std::optional<NewestAttempt> newest_attempt(FileSystem& fs, const RunDirectory& run);
/// What was decided about the run's loss (loss.json) and is in the newest attempt; where attempt.json is
/// damaged, what was decided before the newest attempt began.
Remedies applied_remedies(FileSystem& fs, const RunDirectory& run);
/// The newest step in the run's records; 0: none.
int64_t newest_step(FileSystem& fs, const RunDirectory& run);

}  // namespace trainctl
