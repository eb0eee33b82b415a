// A request to stop a run, as a file in its directory. `trainctl stop` writes it when the supervisor runs on
// another machine, where a signal cannot reach it. One thread per StopRequests.
#pragma once
#include <atomic>
#include <memory>

#include "runtime/base/file_worker.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/train/control/control.h"

namespace trainctl {

/// Writes the request. Error(kIo) if the run directory cannot be written.
void request_stop(FileSystem& fs, const RunDirectory& run, StopLevel level);

/// Reads the requests; used by the supervisor.
class StopRequests {
 public:
  /// Removes a request that was meant for an earlier supervisor.
  StopRequests(FileSystem& fs, Clock& clock, const RunDirectory& run, FileWorker& files);
  /// The highest level requested so far. Has the file read at most once a second. A request cannot be
  /// withdrawn.
  StopLevel read();

 private:
  FileSystem& fs_;
  Clock& clock_;
  const RunDirectory run_;
  FileWorker& files_;
  /// Also of the work of files_, which may end later than this object.
  const std::shared_ptr<std::atomic<StopLevel>> level_ =
      std::make_shared<std::atomic<StopLevel>>(StopLevel::none);
  double looked_s_ = 0;
};

}  // namespace trainctl
