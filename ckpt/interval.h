// How often to save to one tier: the interval that loses the least time, by the rule of Young and Daly.
//
// A save costs training `cost` seconds. A failure costs, on average, half an interval of work. Saving every t
// seconds, with one failure every M seconds on average, therefore loses the fraction
//
//     loss(t) = cost / t + t / (2 M)
//
// which is least at t = sqrt(2 * cost * M). Training saves after whole steps, so the decision is the whole
// number of steps whose loss is least. The cost of a restart is left out: it does not depend on t.
//
// Each tier is decided by itself. Only those failures count for a tier from which no nearer tier recovers: a
// lost rank for the memory of its node, a lost node for the memory of its partner, the loss of both for the
// run directory.
//
// M: with a value given and none observed it is the given one. Observation replaces it: the given value
// counts as one failure in `given_mtbf_s` seconds, added to `failures` in `observed_s` seconds. After ten
// failures the given value weighs a tenth.
//
// Pure functions; nothing here reads a clock.
// Source: J. W. Young, CACM 17(9), 1974; J. T. Daly, FGCS 22(3), 2006, first order.
#pragma once
#include <cstdint>
#include <string>

namespace trainctl::ckpt {

/// What is known of one tier when its interval is decided. Times are in seconds, finite and not negative.
struct IntervalFacts {
  double cost_s = 0;  ///< measured: time that a save takes from training
  double write_s =
      0;  ///< measured: from the start of a save until it is safe on this tier; a tier has one save at a time
  double step_s = 0;        ///< measured: one step without a save; above 0
  double given_mtbf_s = 0;  ///< mean time between failures that this tier recovers from: given, or assumed of
                            ///< the machines; above 0
  bool mtbf_is_fixed = false;  ///< the user insists on given_mtbf_s: what is observed does not change it
  int64_t failures = 0;        ///< observed failures that this tier had to recover from
  double observed_s = 0;       ///< in this time
};

/// The user's limits.
struct IntervalLimits {
  int64_t min_steps = 1;
  double max_s = 3600;  ///< at most this much work is at risk, however rare failures are; 0: no limit
};

/// What decided the interval.
enum class IntervalBound { least_loss, min_steps, write_time, max_s };
const char* name_of(IntervalBound);

struct IntervalDecision {
  int64_t steps = 1;      ///< save after every `steps` steps
  double interval_s = 0;  ///< steps * step_s
  double mtbf_s = 0;      ///< that was used
  double ideal_s = 0;     ///< sqrt(2 * cost * mtbf), before limits
  double loss = 0;        ///< fraction of the time expected to be lost to saves and to work done again
  IntervalBound bound = IntervalBound::least_loss;
  /// One line with the numbers, for the log: "every 12 steps (2m 4s): a save costs 0.4s, one failure in 5h
  /// 20m; loses 0.6 %".
  std::string text() const;
};

/// The mean time between failures that the decision uses.
double mtbf_of(const IntervalFacts& facts);

/// Of all whole numbers of steps that the limits allow, the one with the least loss, the larger of equals.
/// Where the limits contradict each other the later of this list gives way: at least min_steps; at least as
/// long as a save takes; at most max_s.
IntervalDecision decide_interval(const IntervalFacts& facts, const IntervalLimits& limits);

}  // namespace trainctl::ckpt
