// When a run goes back to a checkpoint, its records and checkpoints of later steps are moved aside, so that
// each step exists once.
#pragma once
#include "runtime/run/record/console.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

struct GoingBack {
  uint64_t epoch = 0;  ///< the one that begins
  int64_t step = 0;    ///< from this step
  std::string source;  ///< the folder of its checkpoint; "": it is in memory, or the epoch begins at step 0
};

/// Moves checkpoints and metrics of steps after `back.step` to superseded-eEPOCH/ and
/// metrics.superseded-eEPOCH.jsonl, and removes unfinished saves. Returns the number of moved lines of
/// metrics. Error(kCheckpoint), and nothing is moved, if an older epoch's retention has removed the source.
int64_t set_aside_beyond(FileSystem& fs, const RunDirectory& run, const CheckpointSpec& checkpoint,
                         const GoingBack& back, Console& console);

}  // namespace trainctl
