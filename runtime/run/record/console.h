// Console: the interface through which the supervisor reports to the person who started the run.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/train/measure/step_line.h"

namespace trainctl {

/// Shows the lines of a run. The implementation for terminals and logs is in runtime/observe/console.h.
class Console {
 public:
  virtual ~Console() = default;
  /// Shows a line always, also with --quiet: a failure and what to do.
  virtual void say(const std::string& line) = 0;
  /// Shows a line of ordinary progress: " ▸ checkpoint step 500", "✓ data".
  virtual void note(const std::string& line) = 0;
  /// Called for every step. `log`: the table gets a row for this step. `unix_s`: for the key=value form.
  virtual void step(const StepLine& line, bool log, double unix_s) = 0;
  /// Removes the progress line, so that other text starts on an empty line.
  virtual void clear() = 0;
  virtual void set_total_steps(int64_t total) = 0;
};

}  // namespace trainctl
