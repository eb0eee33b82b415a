// LiveContent: what the live page of a run answers, read from the run's files at most once a second. Safe
// from any thread.
#pragma once
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/json.h"
#include "runtime/observe/report/run_data.h"
#include "runtime/run/record/known_status.h"

namespace trainctl::live {

class LiveContent {
 public:
  /// `supervised`: whether a process holds the run.
  LiveContent(FileSystem& fs, Clock& clock, RunDirectory run, std::function<bool()> supervised)
      : fs_(fs), clock_(clock), run_(run), supervised_(std::move(supervised)), reader_(fs, run) {}

  struct Report {
    std::string json, tag;  ///< tag: changes with the content
  };
  Report report();
  /// The page with the data of this moment.
  std::string page();
  /// status.json, and whether a supervisor holds the run.
  std::string status();
  /// As Prometheus reads it.
  std::string metrics();

 private:
  OrderedJson read();
  TimeLedger time(const std::optional<KnownStatus>& known);
  FileSystem& fs_;
  Clock& clock_;
  const RunDirectory run_;
  const std::function<bool()> supervised_;
  std::mutex mutex_;
  report::RunReader reader_;
  Report newest_;
  double read_s_ = -1e9;
};

}  // namespace trainctl::live
