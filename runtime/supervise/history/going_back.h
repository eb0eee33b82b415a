// When a run goes back to a checkpoint, its records and checkpoints of later steps are moved aside, so that
// each step exists once.
#pragma once
#include "runtime/run/record/console.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

/// Moves metrics and checkpoints of steps after `step` to metrics.superseded-eEPOCH.jsonl and
/// superseded-eEPOCH/, and removes unfinished saves. Returns the number of moved lines of metrics.
int64_t set_aside_beyond(FileSystem& fs, const RunDirectory& run, const JobSpec& job, int64_t step,
                         uint64_t epoch, Console& console);

}  // namespace trainctl
