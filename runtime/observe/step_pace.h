// StepPace: how long a step takes by the clock, saves and evaluations included. Every view of a run computes
// its time left from it. One thread.
#pragma once
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>

namespace trainctl {

class StepPace {
 public:
  /// A step of this attempt ended at `unix_s`; NaN: not known.
  void step(uint64_t attempt, double unix_s) {
    if (attempt != attempt_ || std::isnan(unix_s)) ended_.clear();
    attempt_ = attempt;
    if (std::isnan(unix_s)) return;
    ended_.push_back(unix_s);
    if (ended_.size() > kMeanOver + 1) ended_.pop_front();
  }
  /// The mean over the newest steps of the newest attempt: one slow step must not make the time left jump.
  /// NaN: it has not ended two.
  double mean_s() const {
    return ended_.size() < 2 ? std::numeric_limits<double>::quiet_NaN()
                             : (ended_.back() - ended_.front()) / double(ended_.size() - 1);
  }
  static constexpr size_t kMeanOver = 200;

 private:
  uint64_t attempt_ = 0;
  std::deque<double> ended_;
};

}  // namespace trainctl
