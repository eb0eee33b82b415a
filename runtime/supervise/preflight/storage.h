// Checks the folder of a run's checkpoints before the run starts: a save works there, and there is enough
// space.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// The space that the checkpoints of a run need at one time: those that are kept, the newest until it is
/// verified, and the one that is being written.
struct SpaceNeed {
  uint64_t checkpoint = 0;  ///< bytes of one checkpoint, without headers and manifest
  int64_t at_once = 1;      ///< the largest number of checkpoints at one time
  int64_t present = 0;      ///< how many of them are in the folder already
  uint64_t bytes() const { return checkpoint * uint64_t(std::max<int64_t>(1, at_once - present)); }
};
/// The need of a job, from its parameters, checkpoint.* and its steps. `present`: checkpoints in the folder.
SpaceNeed space_need(const JobSpec& job, int64_t present = 0);
/// None if there is enough space or the file system does not report it; otherwise one sentence with the numbers
/// and what to do.
Problem space_refusal(const SpaceNeed& need, std::optional<uint64_t> free_bytes, const std::string& directory);

/// Makes `directory`, tries a whole save in it, and compares its free space with the need of the run, less
/// what is there when the run continues from `step`. Error(kPreflight) with one sentence.
void check_checkpoint_folder(FileSystem& fs, SpaceNeed need, const std::string& directory, int64_t step);

}  // namespace trainctl
