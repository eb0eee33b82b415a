// How a run ends: its last lines on the console, its status and its last event.
#pragma once
#include <string>

#include "runtime/supervise/decide/supervision.h"
#include "runtime/supervise/loop/supervisor.h"

namespace trainctl {

class RunEnd {
 public:
  /// `had_identity`: the run directory was whole when this supervisor began.
  RunEnd(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Console& console, RunLog& log);

  /// Keeps what is known of a failed attempt; the folder that holds it.
  std::string record_failure(const Verdict& verdict);
  /// After an attempt that did not fail; `stopped`: "on request", if it was stopped.
  RunResult conclude(const Verdict& verdict, const char* stopped);
  /// The failure block: last, once. `folder` holds what is known of the failure, `resume_step` is where the
  /// last attempt began.
  RunResult conclude_failure(const Verdict& verdict, const std::string& folder, int64_t resume_step);
  /// No attempt runs and none can be begun: a stop meanwhile, too few nodes.
  RunResult conclude_idle(int exit_code, const std::string& why);
  /// The records alone.
  RunResult end(const char* state, int exit_code, std::string reason, std::string advice);

 private:
  const SupervisePlan& plan_;
  const RunDirectory run_;
  FileSystem& fs_;
  Console& console_;
  RunLog& log_;
  const bool had_identity_;
};

}  // namespace trainctl
