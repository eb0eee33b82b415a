// `trainctl inspect-ckpt --repair` and `--copy-to`: repair a checkpoint, or copy it to another place.
#pragma once
#include <string>
#include <vector>

#include "ckpt/s3_client.h"
#include "runtime/base/file_system.h"

namespace trainctl {

struct CheckpointRepairOptions {
  std::string path;  ///< a step folder, or a folder of them or a run directory: its newest step
  /// Likewise, or s3://bucket/prefix: good copies are looked for here first, then in the steps next to
  /// `path`.
  std::vector<std::string> from;
  ckpt::Environment environment =
      ckpt::process_environment;  ///< has credentials and endpoint of an object store
  bool only_look = false;         ///< say what would be done
  bool json = false;
};

struct CheckpointMoveOptions {
  std::string path;  ///< a step folder, or a folder of them or a run directory: the newest that opens; or
                     ///< s3://bucket/prefix
  std::string to;    ///< a folder of checkpoints, made where it is absent; or s3://bucket/prefix
  ckpt::Environment environment =
      ckpt::process_environment;  ///< has credentials and endpoint of an object store
  bool json = false;
};

struct CheckpointOutcome {
  std::string text;      ///< for stdout
  bool damaged = false;  ///< still, after all
};

/// Error(kUsage) if a path does not exist or the checkpoint's run is going, Error(kIo) if a repaired file
/// cannot be written. Holds the run's lock meanwhile.
CheckpointOutcome repair_checkpoint(FileSystem& fs, Clock& clock, const CheckpointRepairOptions& options);

/// Copies a checkpoint to another place, every byte checked. Error(kUsage), Error(kCheckpoint), Error(kIo).
/// Holds the lock of the run to whose folder it writes, if it is one's. The source may be of a run that is
/// going.
CheckpointOutcome copy_checkpoint(FileSystem& fs, Clock& clock, const CheckpointMoveOptions& options);

}  // namespace trainctl
