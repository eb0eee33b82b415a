// A request to stop a run, left in its directory by `trainctl stop` on another machine than the
// supervisor's: a signal does not get there, a shared folder does. One thread a reader.
#pragma once
#include "runtime/run/record/run_directory.h"
#include "runtime/train/control.h"

namespace trainctl {

/// Error(kIo) where the run directory cannot be written.
void request_stop(FileSystem& fs, const RunDirectory& run, StopLevel level);

/// The supervisor's end of it.
class StopRequests {
 public:
  /// Removes a request to an earlier supervisor.
  StopRequests(FileSystem& fs, Clock& clock, const RunDirectory& run);
  /// Looks at most once a second. A request is not taken back.
  StopLevel read();

 private:
  FileSystem& fs_;
  Clock& clock_;
  const RunDirectory run_;
  StopLevel level_ = StopLevel::none;
  double looked_s_ = 0;
};

}  // namespace trainctl
