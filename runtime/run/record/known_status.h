// The status of a run from its files: status.json, or its other records if status.json is damaged or missing.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"

namespace trainctl {

struct KnownStatus {
  RunStatus status;
  std::string note;  ///< why status.json could not be used; "": it was used
};
/// nullopt if the run has never started. If status.json cannot be used, state, step and last checkpoint come
/// from events.jsonl, metrics.jsonl and the checkpoints, and RunStatus::ranks and nodes are empty. Error(kIo)
/// if these are damaged too.
std::optional<KnownStatus> status_of_run(FileSystem& fs, const RunDirectory& run);

/// Where the run saves its checkpoints, as its job.json says.
std::string checkpoint_folder(FileSystem& fs, const RunDirectory& run);
/// The steps of those that are there, newest first.
std::vector<int64_t> checkpoint_steps(FileSystem& fs, const RunDirectory& run);

/// One line for each folder of checkpoints that the run moved aside when it went back to an earlier step:
/// steps, size, path.
std::vector<std::string> superseded_lines(FileSystem& fs, const RunDirectory& run);

}  // namespace trainctl
