// A new run that begins from a checkpoint of another: `launch JOB --from RUN[@STEP]`.
//
// Everything in the checkpoint carries over: weights, both moments of the optimizer, the number of the step (so the schedule goes on where
// it was: its lengths count from the parent's first step) and the position in the data, unless the data are others.
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

/// Where a branch begins.
struct BranchPoint {
  std::string checkpoint;   ///< its folder, absolute
  std::string root_hash;
  ckpt::StateInfo state;
  ParsedJob job;            ///< that the state was computed with
};

/// The checkpoint that `name` means: RUN (its newest usable one), RUN@STEP, RUN@latest, or the folder of a checkpoint, wherever it is.
/// RUN is looked for in `run_root`. Those skipped are reported to `skipped` (path, reason). Error(kUsage): no such run or step;
/// Error(kCheckpoint): damaged, or without a job spec.
BranchPoint find_branch_point(FileSystem& fs, const std::string& name, const std::string& run_root,
                              const std::function<void(const std::string&, const std::string&)>& skipped);

/// The checkpoint of `step` in `directory`. Error(kCheckpoint) saying which steps there are.
std::unique_ptr<ckpt::Checkpoint> open_step(FileSystem& fs, const std::string& directory, int64_t step);

/// `schedule.batch_lr_rule` of a branch with another global batch than its parent's, "linear, × 2"; "" where
/// it changes nothing.
std::string lr_rule_of(const BranchPoint& from, const JobSpec& job);
/// The job with lr and min_lr multiplied as that rule says. Error(kSpec) if lr leaves its range.
ParsedJob with_batch_lr_rule(const BranchPoint& from, const ParsedJob& job);

/// What the branch is, for its records. `data_json`: fingerprints of its data (data.json).
LineageEntry branch_entry(const BranchPoint& from, const ParsedJob& job, const std::string& data_json);

/// The newest step that the run saved and that leaves something to train up to `total_steps`; nothing if there is none.
std::optional<int64_t> step_to_branch_from(FileSystem& fs, const RunDirectory& run, int64_t total_steps);

/// The command that launches a branch of the run in `run_path` with `overrides` (PATH=VALUE), from any folder. Without a step: from its
/// newest checkpoint.
std::string branch_command(const std::string& run_path, std::optional<int64_t> step, const std::vector<std::string>& overrides);

}  // namespace trainctl
