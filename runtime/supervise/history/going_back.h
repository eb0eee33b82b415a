// A run goes back to a checkpoint: what it had done beyond that step is moved aside, so that each step is
// there once.
#pragma once
#include "runtime/run/record/console.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

/// Moves metrics and checkpoints of steps after `step` to metrics.superseded-eEPOCH.jsonl and
/// superseded-eEPOCH/, and removes unfinished saves. Returns how many lines of metrics were moved.
int64_t set_aside_beyond(FileSystem& fs, const RunDirectory& run, const JobSpec& job, int64_t step,
                         uint64_t epoch, Console& console);

}  // namespace trainctl
