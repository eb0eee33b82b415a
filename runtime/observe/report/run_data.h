// RunData: what the report knows of one run, and RunReader, which reads it from the run's files. A file that
// is missing, cut off or damaged takes a part of the report away, never all of it: `notes` say which.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/observe/report/expert_map.h"
#include "runtime/observe/report/happenings.h"
#include "runtime/observe/report/rank_grid.h"
#include "runtime/observe/report/spec_rows.h"
#include "runtime/observe/report/step_rows.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/run/record/time_ledger.h"

namespace trainctl::report {

struct RunData {
  std::string id, directory;
  bool supervised = false;          ///< a process holds the run
  std::optional<RunStatus> status;  ///< nullopt: it has never started
  std::optional<RunIdentity> identity;
  std::optional<JobSpec> job;  ///< nullopt: its spec cannot be used
  std::vector<SpecRow> spec;
  OrderedJson plan;  ///< plan_view; null: there is none
  StepRows steps;
  TimeRecords time;
  RankGrid ranks;
  ExpertMap experts;
  Happenings happenings;
  std::vector<std::string> notes;  ///< what is missing and why, one sentence each
};

/// Reads a run once, or again and again while it goes on: lines that were read are not read again. One
/// thread.
class RunReader {
 public:
  /// What is not asked for stays empty.
  struct Parts {
    bool plan = true;   ///< takes as long as `trainctl plan` does
    bool ranks = true;  ///< reads files of up to 128 MiB
  };
  RunReader(FileSystem& fs, RunDirectory run) : RunReader(fs, std::move(run), Parts()) {}
  RunReader(FileSystem& fs, RunDirectory run, Parts parts);
  ~RunReader();
  RunReader(const RunReader&) = delete;
  RunReader& operator=(const RunReader&) = delete;
  /// Reads what is new. `supervised`: a process holds the run.
  const RunData& read(bool supervised);

 private:
  struct Files;
  void read_spec();
  void read_lines();
  FileSystem& fs_;
  const RunDirectory run_;
  const Parts parts_;
  std::unique_ptr<Files> files_;
  RunData data_;
};

}  // namespace trainctl::report
