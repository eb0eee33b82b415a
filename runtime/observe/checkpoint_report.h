// What `trainctl inspect-ckpt` says about a checkpoint: a summary, its tensors, their statistics, a verification of every byte,
// or the differences from another one; for people or as JSON.
#pragma once
#include <string>

#include "runtime/base/file_system.h"

namespace trainctl {

struct CheckpointReportOptions {
  std::string path;          ///< a step folder, a folder of step folders, or a run directory: the newest checkpoint that opens
  std::string other;         ///< compare with this one instead (same kinds of path)
  bool tensors = false, stats = false, verify = false;
  bool json = false;
};

struct CheckpointReport {
  std::string text;          ///< for stdout
  std::string notes;         ///< for stderr: newer checkpoints that were passed over, and why
  bool damaged = false;      ///< verify found something, or passed something over
  bool different = false;    ///< compared with `other`
};

/// Error(kUsage) if a path does not exist, Error(kCheckpoint) if there is no usable checkpoint.
CheckpointReport report_checkpoint(FileSystem& fs, Clock& clock, const CheckpointReportOptions& options);

}  // namespace trainctl
