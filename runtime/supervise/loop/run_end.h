// RunEnd writes the end of a run: the last lines on the console, the final status and the event `end`.
#pragma once
#include <string>

#include "runtime/supervise/loop/ending.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

/// How the run ended, for the command that supervised it.
struct RunResult {
  int exit_code = 0;
  RunStatus status;
  LastActs acts;  ///< the caller passes them to act() after it has released the run's lock
};

class RunEnd {
 public:
  /// `run` must outlive this object. Make it before the first attempt: it notes whether run.json exists.
  explicit RunEnd(SupervisedRun& run)
      : run_(run), had_identity_(run.fs.exists(run.directory.file("run.json"))) {}

  /// Writes the event `failure` and moves the records of the failed attempt into a folder, which it returns.
  std::string record_failure(const Verdict& verdict);
  /// Ends the run after an attempt that did not fail. `stopped`: why it was stopped ("on request"), if it
  /// was.
  RunResult conclude(const Verdict& verdict, const char* stopped);
  /// Ends the run after a failure and prints the failure block. `folder`: the result of record_failure.
  /// `resume_step`: the step from which the last attempt began.
  RunResult conclude_failure(const Verdict& verdict, const std::string& folder, int64_t resume_step);
  /// Ends the run while no attempt runs: a stop between attempts, or too few nodes.
  RunResult conclude_idle(int exit_code, const std::string& why);
  /// Writes the ending. Reports an error if the run directory was removed meanwhile.
  RunResult end(Ending ending);

 private:
  EndFacts facts() const;
  SupervisedRun& run_;
  const bool had_identity_;
};

}  // namespace trainctl
