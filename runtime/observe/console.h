// TerminalConsole shows a run to a person: a header, a table of steps, notes, and on a terminal one line of
// progress that is redrawn.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/file_worker.h"
#include "runtime/base/units.h"
#include "runtime/observe/progress_line.h"
#include "runtime/observe/step_pace.h"
#include "runtime/run/record/console.h"

namespace trainctl {

class TerminalConsole final : public Console {
 public:
  struct Options {
    bool terminal = false;  ///< true: a table and a redrawn progress line; false: key=value lines
    bool color = false;
    bool quiet = false;  ///< show only lines of say()
    int64_t total_steps = 0;
    double begun_unix_s = 0;  ///< when the launch began, for the goodput; 0: with the first step
    std::function<int()> columns;  ///< width of the terminal, 0 if unknown; default: unknown
    std::function<void(const std::string&)> write;  ///< default: stderr
  };
  explicit TerminalConsole(Options options);
  ~TerminalConsole() override;

  void say(const std::string& line) override;
  void note(const std::string& line) override;
  void step(const StepLine& view, bool log, double unix_s) override;
  void clear() override;
  void set_total_steps(int64_t total) override { options_.total_steps = total; }
  bool terminal() const { return options_.terminal; }

 private:
  void draw_progress();
  void line(const std::string& text);
  Options options_;
  std::unique_ptr<FileWorker>
      errors_;  ///< writes to stderr: a terminal that is held, or a file, is not waited for
  bool progress_shown_ = false;
  int rows_ = 0;
  StepPace pace_;
  double drawn_unix_s_ = 0;
  Goodput goodput_;
  double tokens_per_s_ = Progress::kUnknown,
         mfu_ = Progress::kUnknown;  ///< the newest: not every step has them
  std::string progress_;
};

}  // namespace trainctl
