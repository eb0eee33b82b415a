// What the records of a run say of its checkpoints: for a search that finds none, which may then not take the
// run for one that never saved.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"

namespace trainctl {

/// The newest step that was saved since the run last began at its start; nullopt: none. Pure.
///   events   lines of events.jsonl
///   status   counts for the attempt that the events name last, or where they name none; nullopt: unknown
///   parent   the folder of another run's checkpoint at which this run begins; "": it begins at step 0
std::optional<int64_t> recorded_save(const std::vector<std::string>& events,
                                     const std::optional<RunStatus>& status, const std::string& parent);

/// The same of the records of `run`; a damaged one counts for nothing.
std::optional<int64_t> recorded_save(FileSystem& fs, const RunDirectory& run, const std::string& parent);

}  // namespace trainctl
