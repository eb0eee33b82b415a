// Where a training state comes from: the checkpoints of other runs that it began from, and the changes of spec or device on its way.
// Kept in run.json and in each checkpoint, so that a checkpoint alone tells its history.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/spec/changes.h"

namespace trainctl {

struct LineageEntry {
  enum Kind { branch, change } kind = branch;
  std::string run_id;                      ///< branch: of the parent; change: of the run itself
  int64_t step = 0;                        ///< the last one before it
  std::string root;                        ///< branch: root hash of the parent's checkpoint
  std::vector<FieldChange> changes;        ///< that decide numbers
  std::string numerics_before, numerics;   ///< of the devices, where they differ
  bool new_data = false;                   ///< branch: the data begin at their start
  std::string lr_rule;  ///< branch: "linear, × 2", where the batch has changed the learning rate
};

/// JSON list, oldest first; and back (of a damaged text: none).
std::string lineage_json(const std::vector<LineageEntry>& lineage);
std::vector<LineageEntry> lineage_of(const std::string& json);

std::string to_json(const LineageEntry& entry);

/// The lineage of a run that goes back to `step`: changes made later begin there.
std::string lineage_at(const std::string& json, int64_t step);

/// "from base step 500 (state 1a2b3c4d5e6f7a8b): schedule.lr 0.003 → 0.001", one line.
std::string describe(const LineageEntry& entry);

}  // namespace trainctl
