// StepTracer records the steps that the supervisor asks for, and writes the recording of this rank.
//
//   Control::trace_number -> offered() --sums over ranks--> agreed() -> begin_step() ... -> a file, traced()
//
// All ranks of a run record the same steps: an order begins with the step after the one in whose sums every
// rank knew of it, and knew of no other. The file is written by a thread of its own, after the last step.
// All calls are made by the rank's main thread.
#pragma once
#include <cstdint>
#include <memory>

#include "runtime/base/file_system.h"
#include "runtime/spans/recorder.h"
#include "runtime/train/control/control.h"

namespace trainctl {

/// The orders that ranks could begin: the smallest and the largest number.
struct TraceOffer {
  int64_t low = 0, high = 0;
  void add(const TraceOffer& other) {
    low = low < other.low ? low : other.low;
    high = high > other.high ? high : other.high;
  }
};

/// The steps to record. Pure.
class TraceWindow {
 public:
  /// All ranks can begin these orders in the sums of step `step`. Returns whether an order begins: then it is
  /// of the steps first_step() .. last_step().
  bool agreed(const TraceOffer& all, int64_t step, int64_t first_step, int64_t steps) {
    if (all.low != all.high || all.low == 0 || all.low == number_) return false;
    number_ = all.low;
    first_ = first_step > step + 1 ? first_step : step + 1;
    last_ = first_ + steps - 1;
    return true;
  }
  int64_t number() const { return number_; }
  int64_t first_step() const { return first_; }
  int64_t last_step() const { return last_; }
  bool has(int64_t step) const { return step >= first_ && step <= last_; }

 private:
  int64_t number_ = 0, first_ = 0, last_ = -1;
};

class StepTracer {
 public:
  /// `who`: the rank, for its recordings. `control` must outlive it; `fs` also the thread that writes.
  StepTracer(Recording who, std::shared_ptr<SpanRecorder> spans, Control& control, FileSystem& fs);
  /// Does not wait for a file that is being written, whose result is then not reported; end() does.
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  /// What this rank can begin: not while it writes.
  TraceOffer offered();
  /// The offers of all ranks together, known in step `step`.
  void agreed(const TraceOffer& all, int64_t step);
  /// Step `step` begins. Returns whether it is recorded.
  bool begin_step(int64_t step);
  /// The run ends after step `step`: writes what was recorded, and waits for the file for at most `limit_s`.
  void end(int64_t step, double limit_s);

 private:
  struct Shared;
  void finish(int64_t last_step);
  const std::shared_ptr<Shared> shared_;
  SpanRecorder& spans_;
  Control& control_;
  TraceOrder order_;  // the newest that is known here
  TraceWindow window_;
  std::string folder_;                      // of the order of the window
  bool records_ = false, is_open_ = false;  // this rank records the window; it has not been written
};

}  // namespace trainctl
