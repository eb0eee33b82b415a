#include "ckpt/interval.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

/// No run has so many steps. The limit keeps every product with a step's time finite.
constexpr double kMostSteps = 1e15;
/// One failure says within a factor of about 4 how often they come, an assumption within one of about 100:
/// the logarithms weigh about as the inverse of their variances.
constexpr double kGivenWeight = 0.25;

bool is_time(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

double loss_of(double cost_s, double interval_s, double mtbf_s) {
  return cost_s / interval_s + interval_s / (2 * mtbf_s);
}

int64_t whole_steps(double steps) { return int64_t(std::clamp(steps, 1.0, kMostSteps)); }

/// ceil that tolerates a rounding error of the division: 3 saves of 0.1 s fit into 0.3 s.
double ceil_steps(double seconds, double step_s) { return std::ceil(seconds / step_s * (1 - 1e-12)); }

}  // namespace

double mtbf_of(const IntervalFacts& facts) {
  if (facts.mtbf_is_fixed) return facts.given_mtbf_s;
  const double failures = double(facts.failures);
  const double given_s = std::max(facts.given_mtbf_s, facts.observed_s / (1 + failures));
  if (facts.failures == 0) return given_s;
  // A run that fails at every step gets nowhere in any case.
  const double seen_s = std::max(facts.observed_s / failures, facts.step_s);
  return std::exp((kGivenWeight * std::log(given_s) + failures * std::log(seen_s)) /
                  (kGivenWeight + failures));
}

double interval_loss(const IntervalFacts& facts, double interval_s) {
  return loss_of(facts.cost_s, interval_s, mtbf_of(facts));
}

IntervalDecision decide_interval(const IntervalFacts& facts, const IntervalLimits& limits) {
  ENSURE(
      is_time(facts.cost_s) && is_time(facts.write_s) && is_time(facts.observed_s) && is_time(limits.max_s),
      "cost {} s, write {} s, observed {} s, limit {} s", facts.cost_s, facts.write_s, facts.observed_s,
      limits.max_s);
  ENSURE(is_time(facts.step_s) && facts.step_s > 0 && is_time(facts.given_mtbf_s) && facts.given_mtbf_s > 0,
         "a step of {} s, {} s between failures", facts.step_s, facts.given_mtbf_s);
  ENSURE(facts.failures >= 0 && limits.min_steps >= 1, "{} failures, at least {} steps", facts.failures,
         limits.min_steps);
  IntervalDecision result{.mtbf_s = mtbf_of(facts)};
  result.ideal_s = std::sqrt(2 * facts.cost_s * result.mtbf_s);
  const auto loss = [&](int64_t steps) {
    return loss_of(facts.cost_s, double(steps) * facts.step_s, result.mtbf_s);
  };

  // The loss falls up to ideal_s and rises after it, so the best whole number is next to it.
  const int64_t below = whole_steps(std::floor(result.ideal_s / facts.step_s)), above = below + 1;
  result.steps = loss(above) <= loss(below) ? above : below;

  if (limits.max_s > 0) {
    const int64_t most = whole_steps(std::floor(limits.max_s / facts.step_s * (1 + 1e-12)));
    if (result.steps > most) result.steps = most, result.bound = IntervalBound::max_s;
  }
  const int64_t one_save = whole_steps(ceil_steps(facts.write_s, facts.step_s));
  if (result.steps < one_save) result.steps = one_save, result.bound = IntervalBound::write_time;
  if (result.steps < limits.min_steps)
    result.steps = limits.min_steps, result.bound = IntervalBound::min_steps;
  result.interval_s = double(result.steps) * facts.step_s;
  result.loss = loss(result.steps);
  return result;
}

}  // namespace trainctl::ckpt
