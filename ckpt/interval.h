// Decides the interval between saves to one tier: the interval that loses the least time, by the rule of
// Young and Daly.
//
// A save costs training `cost` seconds. A failure costs, on average, half an interval of work. With a save
// every t seconds and one failure every M seconds on average, the lost fraction of time is
//
//     loss(t) = cost / t + t / (2 M)
//
// Its minimum is at t = sqrt(2 * cost * M). Training saves after whole steps, so the decision is the number
// of steps with the least loss. The cost of a restart does not depend on t and is not in the formula.
//
// Each tier is decided separately. For a tier, only failures count from which no nearer tier recovers: a lost
// rank for the memory of its node, a lost node for the memory of its partner, the loss of both for the run
// directory.
//
// M is the geometric mean of the given value, with the weight of a quarter of a failure, and of the observed
// mean observed_s / failures, with the weight of its failures. So a given value that is wrong by
// orders of magnitude is outweighed after a few failures; an arithmetic mean would need as many failures as
// the factor by which it is wrong. A long time without a failure raises the given value to that time.
//
// Pure.
// Source: J. W. Young, CACM 17(9), 1974; J. T. Daly, FGCS 22(3), 2006, first order.
#pragma once
#include <cstdint>

namespace trainctl::ckpt {

/// The facts about one tier. Times are in seconds, finite and not negative.
struct IntervalFacts {
  double cost_s = 0;  ///< measured: time that training loses by a save
  double write_s =
      0;  ///< measured: from the start of a save until it is safe on this tier; a tier has one save at a time
  double step_s = 0;        ///< measured: one step without a save; above 0
  double given_mtbf_s = 0;  ///< mean time between failures that this tier recovers from: given, or assumed of
                            ///< the machines; above 0
  bool mtbf_is_fixed = false;  ///< use given_mtbf_s and ignore observations, because the user set it
  int64_t failures = 0;        ///< observed failures from which this tier had to recover
  double observed_s = 0;       ///< duration of the observation
};

/// The user's limits.
struct IntervalLimits {
  int64_t min_steps = 1;
  double max_s = 3600;  ///< longest interval, also if failures are rare; 0: no limit
};

/// The reason for the interval.
enum class IntervalBound { least_loss, min_steps, write_time, max_s };

struct IntervalDecision {
  int64_t steps = 1;      ///< save after every `steps` steps
  double interval_s = 0;  ///< steps * step_s
  double mtbf_s = 0;      ///< the mean time between failures that was used
  double ideal_s = 0;     ///< sqrt(2 * cost * mtbf), before limits
  double loss = 0;        ///< expected fraction of time lost by saves and by repeated work
  IntervalBound bound = IntervalBound::least_loss;
};

/// The mean time between failures that the decision uses.
double mtbf_of(const IntervalFacts& facts);
/// The expected fraction of time lost with a save every `interval_s` seconds (above 0).
double interval_loss(const IntervalFacts& facts, double interval_s);

/// The number of steps with the least loss that the limits allow; of equals the larger. The limits, in the
/// order of priority: at least min_steps; at least as long as a save takes; at most max_s. If they contradict
/// each other, the later one is ignored.
IntervalDecision decide_interval(const IntervalFacts& facts, const IntervalLimits& limits);

}  // namespace trainctl::ckpt
