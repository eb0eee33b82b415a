// What a person sees of a run: a header, a table of steps, notes, and on a terminal one line that is redrawn.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/text.h"

namespace trainctl {

/// One step as the console shows it. Taken from the JSON of a step report; absent numbers are NaN.
struct StepView {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens = 0, step_s = 0, tokens_per_s = 0, mfu = 0, data_wait = 0,
         val_loss = 0;
  bool skipped = false;       ///< loss or gradient norm were not finite; parameters were not updated
  int64_t skipped_steps = 0;  ///< so far
};
StepView step_view(const std::string& json);

class Console {
 public:
  struct Options {
    bool terminal = false;  ///< redraw a progress line and print a table; otherwise key=value lines
    bool color = false;
    bool quiet = false;  ///< only say()
    int64_t total_steps = 0;
    std::function<int()> columns;  ///< width of the terminal, 0 if unknown; default: unknown
    std::function<void(const std::string&)> write;  ///< default: stderr
  };
  explicit Console(Options options);
  ~Console();

  /// A line that is always shown, also with --quiet: failures and what to do.
  void say(const std::string& line);
  /// A line of ordinary progress: " ▸ checkpoint step 500", "✓ data".
  void note(const std::string& line);
  /// Called for every step; `log`: it is due in the table as well. `unix_s` for the key=value form.
  void step(const StepView& view, bool log, double unix_s);
  /// Takes the progress line away, so that other text starts on a clean line.
  void clear();
  void set_total_steps(int64_t total) { options_.total_steps = total; }
  bool terminal() const { return options_.terminal; }

 private:
  void draw_progress();
  void line(const std::string& text);
  Options options_;
  bool progress_shown_ = false;
  int rows_ = 0;
  int64_t steps_seen_ = 0;
  double step_s_ = 0;  ///< mean of the last steps, for the time left
  double last_unix_s_ = 0, drawn_unix_s_ = 0;
  std::string progress_;
};

}  // namespace trainctl
