// TimeReader reads what the ledger needs of a run from its files, again and again while it goes on: lines
// that were read are not read again. One thread.
#pragma once
#include <string>
#include <vector>

#include "runtime/run/record/line_follower.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/time_ledger.h"

namespace trainctl {

class TimeReader {
 public:
  TimeReader(FileSystem& fs, const RunDirectory& run)
      : fs_(fs), run_(run), metrics_(fs, run.metrics()), events_(fs, run.events()) {}
  /// Reads what is new, about `most_bytes` of it. Returns whether that was all: then records() is whole.
  /// Error(kIo).
  bool read(uint64_t most_bytes = UINT64_MAX);
  const TimeRecords& records() const { return records_; }

 private:
  FileSystem& fs_;
  const RunDirectory run_;
  LineFollower metrics_, events_;
  std::vector<std::string> given_up_;  ///< names of the files with steps that were given up
  TimeRecords records_;
};

/// The names of the files with steps that the run has given up.
std::vector<std::string> given_up_metrics(FileSystem& fs, const RunDirectory& run);

/// The ledger of the run as its files are now. Error(kIo).
TimeLedger read_ledger(FileSystem& fs, const RunDirectory& run, double now_unix_s);

}  // namespace trainctl
