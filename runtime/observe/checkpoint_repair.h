// `trainctl inspect-ckpt --repair`, `--upload` and `--download`: what changes or moves a checkpoint.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace trainctl {

struct CheckpointRepairOptions {
  std::string path;  ///< a step folder, or a folder of them or a run directory: its newest step
  std::vector<std::string>
      from;  ///< likewise: good copies are looked for here first, then in the steps next to `path`
  bool only_look = false;  ///< say what would be done
  bool json = false;
};

struct CheckpointMoveOptions {
  std::string path;  ///< a step folder, or a folder of them or a run directory: the newest that opens
  std::string to;    ///< a folder of checkpoints, made where it is absent
  bool json = false;
};

struct CheckpointOutcome {
  std::string text;      ///< for stdout
  bool damaged = false;  ///< still, after all
};

/// Error(kUsage) if a path does not exist, Error(kIo) if a repaired file cannot be written.
CheckpointOutcome repair_checkpoint(FileSystem& fs, const CheckpointRepairOptions& options);

/// Copies a checkpoint into another folder of checkpoints. Error(kUsage), Error(kCheckpoint), Error(kIo).
CheckpointOutcome copy_checkpoint(FileSystem& fs, const CheckpointMoveOptions& options);

}  // namespace trainctl
