// StepClock divides the time of a rank into the phases of its steps. Pure: the caller gives the times.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

class StepClock {
 public:
  struct Now {
    double s = 0;         ///< monotonic
    double waited_s = 0;  ///< the rank's waits for peers so far
    /// Of these, for ranks that share its experts, and its sequences; NaN: it has no such peers.
    double waited_experts_s = NAN, waited_context_s = NAN;
    double waited_pipeline_s = 0;  ///< and for its neighbours in the pipeline
  };

  /// A step begins. Time since the end of the previous one that was not spent apart counts as reporting.
  void begin(Now now) {
    times_ = {};
    times_.reporting_s = std::isnan(ended_s_) ? 0 : std::max(0.0, now.s - ended_s_ - apart_s_);
    apart_s_ = 0;
    began_ = now;
  }
  void waited_for_data(double seconds) { times_.data_s += seconds; }
  /// The backward pass has ended: the gradients are summed from now on.
  void sums(Now now) { sums_ = now; }
  /// The step has ended. forward_s, backward_s: without waits for peers.
  void end(Now now, double forward_s, double backward_s) {
    times_.forward_s = forward_s;
    times_.backward_s = backward_s;
    times_.optimizer_s = now.s - sums_.s - (now.waited_s - sums_.waited_s);
    times_.communication_s = now.waited_s - began_.waited_s;
    times_.experts_s = now.waited_experts_s - began_.waited_experts_s;
    times_.context_s = now.waited_context_s - began_.waited_context_s;
    times_.pipeline_s = now.waited_pipeline_s - began_.waited_pipeline_s;
    times_.step_s = now.s - began_.s + times_.reporting_s;
    times_.checkpoint_s = std::exchange(saving_s_, 0.0);
    ended_s_ = now.s;
  }
  /// The evaluation after the step, if there was one, has ended.
  void evaluated(double now_s) { times_.evaluation_s = apart_s_ = now_s - ended_s_; }
  /// A save after the step took so long. The next step reports it.
  void saved(double seconds) {
    saving_s_ += seconds;
    apart_s_ += seconds;
  }
  /// The step waited so long for the copy of the state before it.
  void fenced(double seconds) { saving_s_ += seconds; }
  /// Of the step that ended last.
  const RankTimes& times() const { return times_; }

 private:
  RankTimes times_;
  Now began_, sums_;
  double ended_s_ = NAN;
  double apart_s_ = 0;   // evaluation and saving since the last step ended
  double saving_s_ = 0;  // since a step last ended
};

}  // namespace trainctl
