// What is known of a run: status.json, or where that is damaged or missing, what its other records say.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"

namespace trainctl {

struct KnownStatus {
  RunStatus status;
  std::string note;  ///< not "": status.json could not be used, and why
};
/// Nothing if the run has never started. Without a good status.json the state, step and last checkpoint come from events.jsonl,
/// metrics.jsonl and the checkpoints; what the ranks do is not known then.
std::optional<KnownStatus> status_of_run(FileSystem& fs, const RunDirectory& run);

/// A line for each folder of checkpoints that the run set aside when it went back: steps, size, path.
std::vector<std::string> superseded_lines(FileSystem& fs, const RunDirectory& run);

}  // namespace trainctl
