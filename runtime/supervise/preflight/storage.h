// What must hold of the folder of a run's checkpoints before the run is started: a save works there, and
// there is room.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// What the checkpoints of a run take at once: those that are kept and the one being written.
struct SpaceNeed {
  uint64_t checkpoint = 0;  ///< bytes of one, without its headers and manifest
  int64_t at_once = 1;      ///< how many of them
  int64_t present = 0;      ///< how many of those are in the folder already
  uint64_t bytes() const { return checkpoint * uint64_t(std::max<int64_t>(1, at_once - present)); }
};
/// From the table of parameters, checkpoint.* and the steps of the job.
SpaceNeed space_need(const JobSpec& job, int64_t present);
/// "" if it fits, or if the file system does not say what is free; else one sentence with the numbers and
/// what to do.
std::string space_refusal(const SpaceNeed& need, std::optional<uint64_t> free_bytes, const std::string& directory);

/// Makes `directory`, tries a whole save in it and compares its free space with what the job's checkpoints
/// take when the run goes on from `step`. Error(kPreflight) with one sentence.
void check_checkpoint_folder(FileSystem& fs, const JobSpec& job, const std::string& directory, int64_t step);

}  // namespace trainctl
