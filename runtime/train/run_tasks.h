// RunTasks: the multiple-choice tasks of a run (eval.tasks), scored on its own mesh. The weights do not
// change. `trainctl eval --tasks` packs the same texts into the same sequences.
#pragma once
#include <memory>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/model/executor.h"
#include "runtime/train/measure/step_line.h"
#include "runtime/train/rank_resources.h"
#include "runtime/train/tasks/packed_texts.h"

namespace trainctl {

class RunTasks {
 public:
  /// Reads the files and takes the memory. Error(kData) as check. The rank must outlive it.
  RunTasks(FileSystem& fs, RankResources& rank);

  /// Error(kData) with one sentence if a file cannot be used with the job's model.
  static void check(const JobSpec& job, FileSystem& fs);
  /// Whether scores follow step `step` (from 1): after every so many steps, and after the last of the run.
  bool follow(int64_t step) const;
  /// In the order of the files. Collective; the same on every rank.
  std::vector<TaskScore> score(Executor& executor, RankActivity& activity);

 private:
  void add(const TaskFile& file);
  void upload(int64_t first, int count);
  void take(int64_t first, int count, std::span<float> losses) const;
  std::vector<TaskScore> scores_of(std::span<const Likelihood> of_endings) const;

  RankResources& rank_;
  const TaskFiles tasks_;
  std::vector<PackedTexts> sequences_;
  std::vector<size_t> targets_before_ = {0};  ///< those that count, of the sequences before each and of all
  size_t endings_ = 0;
  std::unique_ptr<TokenFeed> feed_;
  std::unique_ptr<kernels::Buffer> losses_;  ///< f32 [evaluated_together, rows] of the host
  std::vector<int32_t> tokens_;              ///< SequenceCut::tokens_of this rank
};

}  // namespace trainctl
