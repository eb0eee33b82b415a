// A branch is a new run that begins from a checkpoint of another run (its parent):
// `launch JOB --from RUN[@STEP]`.
//
// The branch takes everything from the checkpoint: weights, both moments of the optimizer, the step number,
// and the position in the data unless the data differ. So the schedule continues: its lengths count from the
// parent's first step.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/spec/lineage.h"

namespace trainctl {

/// The checkpoint from which a branch begins.
struct BranchPoint {
  std::string checkpoint;   ///< folder, absolute
  std::string root_hash;
  ckpt::StateInfo state;
  ParsedJob job;            ///< the job that computed the state, as_computed
  bool imported = false;    ///< by `trainctl import`: no job computed it; `job` says the model and nothing else
};

/// The job of a run as it was computed. Programs before `data.documents` and `data.loss` ignored where
/// documents begin and took every target; their jobs have neither field, which is no difference from a job
/// that says so.
ParsedJob as_computed(const ParsedJob& job);

/// Finds a checkpoint by `name`: RUN or RUN@latest (the newest usable checkpoint of a run), RUN@STEP, or the
/// path of a checkpoint folder. RUN is searched in `run_root`. Calls `skipped` (path, reason) for each
/// unusable checkpoint that is passed over. Error(kUsage): no such run or step; Error(kCheckpoint): the
/// checkpoint is damaged or has no job spec.
BranchPoint find_branch_point(FileSystem& fs, const std::string& name, const std::string& run_root,
                              const std::function<void(const std::string&, const std::string&)>& skipped);

/// Opens the checkpoint of `step` in `directory`. Error(kCheckpoint) names the steps that exist.
std::unique_ptr<ckpt::Checkpoint> open_step(FileSystem& fs, const std::string& directory, int64_t step);

/// The job with lr and min_lr multiplied by the factor of schedule.batch_lr_rule, for a branch whose global
/// batch differs from its parent's. Error(kSpec) if lr leaves its range.
ParsedJob with_batch_lr_rule(const BranchPoint& from, const ParsedJob& job);

/// The entry of the branch for its lineage. `data_json`: fingerprints of its data (data.json).
LineageEntry branch_entry(const BranchPoint& from, const ParsedJob& job, const std::string& data_json);

/// The newest checkpoint of the run whose step is less than `total_steps`; nullopt if there is none.
std::optional<int64_t> step_to_branch_from(FileSystem& fs, const RunDirectory& run, int64_t total_steps);

/// The command that launches a branch of the run in `run_path` with `overrides` (PATH=VALUE). The command
/// works from any folder if `run_path` is absolute. `step` nullopt: from the newest checkpoint.
std::string branch_command(const std::string& run_path, std::optional<int64_t> step, const std::vector<std::string>& overrides);

}  // namespace trainctl
