// The line of progress that a terminal shows and redraws, and the goodput that is in it.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runtime/train/measure/step_line.h"

namespace trainctl {

/// The share of a launch's time that went into steps that count: neither into starting, saving, evaluating
/// and recovering, nor into steps that a restart does again. One thread.
class Goodput {
 public:
  /// `begun_unix_s`: when the launch began; 0: with the first step.
  explicit Goodput(double begun_unix_s) : begun_unix_s_(begun_unix_s) {}
  /// A step ended at `unix_s`.
  void step(const StepLine& line, double unix_s);
  /// From 0 to 1; NaN: no step has ended.
  double value() const;

 private:
  double begun_unix_s_, ended_unix_s_ = 0;
  uint64_t attempt_ = 0;
  double counted_s_ = 0;                            ///< the time of all steps that count
  std::vector<std::pair<int64_t, double>> recent_;  ///< the newest steps, each with its time; ascending
};

struct Progress {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0, total = 0;
  double loss = kUnknown, tokens_per_s = kUnknown, mfu = kUnknown, goodput = kUnknown, left_s = kUnknown;
};

/// " 612/23842 [███▏      ]  loss 5.3100  518 k tok/s  mfu 42.0 %  goodput 98.7 %  eta 2d 5h" in at most
/// `columns` - 1 columns, so that it never wraps; 0: no limit. What does not fit is left out: first goodput
/// and MFU, then tokens/s, then the bar, which takes what is left.
std::string progress_line(const Progress& progress, int columns, bool color);

}  // namespace trainctl
