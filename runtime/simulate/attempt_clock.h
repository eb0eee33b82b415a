// AttemptClock: the times at which an attempt finishes its steps and saves, in closed form, so that nothing is
// done for each step. Pure.
#pragma once
#include <vector>

#include "runtime/simulate/failures.h"

namespace trainctl::simulate {

/// What training waits for after steps that are divisible by a number; every 0: never.
struct Pauses {
  struct Pause {
    int64_t every = 0;
    Ns cost = 0;
  };
  Pause directory, memory, evaluation;  ///< a step that is saved to both waits for the save to the directory
  Ns saving(int64_t after, int64_t upto) const;  ///< of the steps after + 1 .. upto
  Ns evaluating(int64_t after, int64_t upto) const;
  Ns all(int64_t after, int64_t upto) const { return saving(after, upto) + evaluating(after, upto); }
};

class AttemptClock {
 public:
  /// The attempt begins its first step at `begin`, after `step` steps of the run.
  AttemptClock(Ns begin, int64_t step, Ns step_time, const Pauses& pauses);

  /// Steps that begin after `at` take that long.
  void change_pace(Ns at, Ns step_time);
  /// When the step ends; the pause behind it comes later.
  Ns end_of(int64_t step) const;
  /// The steps of the run that are finished at `at`.
  int64_t steps_at(Ns at) const;
  int64_t first() const { return parts_.front().step; }
  const Pauses& pauses() const { return pauses_; }

  /// Steps of one pace.
  struct Part {
    Ns begin = 0;      ///< of its first step
    int64_t step = 0;  ///< finished before
    Ns step_time = 0;
  };
  const std::vector<Part>& parts() const { return parts_; }

  /// The newest step of the attempt that is divisible by `every` and whose save, which takes `safe` from the
  /// end of the step, was safe at `at`; -1: there is none.
  int64_t saved_at(Ns at, int64_t every, Ns safe) const;

 private:
  Ns end_in(const Part& part, int64_t step) const;
  std::vector<Part> parts_;
  Pauses pauses_;
};

}  // namespace trainctl::simulate
