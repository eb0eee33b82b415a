// The report of `trainctl inspect-ckpt` on a checkpoint, for people or as JSON: a summary, its tensors, their
// statistics, a verification of every byte, or the differences from another checkpoint.
#pragma once
#include <string>

#include "ckpt/s3_client.h"
#include "runtime/base/file_system.h"

namespace trainctl {

struct CheckpointReportOptions {
  /// A step folder; or a folder of step folders or a run directory, then the newest checkpoint that opens.
  /// Also s3://bucket/prefix, then the newest there, or one of its step folders.
  std::string path;
  std::string other;         ///< compare with this checkpoint (same kinds of path); "": no comparison
  bool tensors = false, stats = false, verify = false;
  bool json = false;
  ckpt::Environment environment = ckpt::process_environment;  ///< credentials and endpoint of an object store
};

struct CheckpointReport {
  std::string text;          ///< for stdout
  std::string notes;         ///< for stderr: newer checkpoints that could not be used, and why
  bool damaged = false;      ///< verify found damage, or skipped a damaged checkpoint
  bool different = false;    ///< the checkpoint differs from `other`
};

/// Error(kUsage) if a path does not exist, Error(kCheckpoint) if there is no usable checkpoint.
CheckpointReport report_checkpoint(FileSystem& fs, Clock& clock, const CheckpointReportOptions& options);

}  // namespace trainctl
