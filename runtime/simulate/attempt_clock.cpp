#include "runtime/simulate/attempt_clock.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/error.h"

namespace trainctl::simulate {
namespace {

int64_t multiples(int64_t after, int64_t upto, int64_t every) {
  return every > 0 && upto > after ? upto / every - after / every : 0;
}

}  // namespace

Ns Pauses::saving(int64_t after, int64_t upto) const {
  const bool both = directory.every > 0 && memory.every > 0;
  // The least common multiple is beyond every step where it does not fit.
  const int64_t part = both ? directory.every / std::gcd(directory.every, memory.every) : 0;
  const int64_t common = both && part <= upto / memory.every ? part * memory.every : 0;
  return multiples(after, upto, directory.every) * directory.cost +
         (multiples(after, upto, memory.every) - multiples(after, upto, common)) * memory.cost;
}

Ns Pauses::evaluating(int64_t after, int64_t upto) const {
  return multiples(after, upto, evaluation.every) * evaluation.cost;
}

AttemptClock::AttemptClock(Ns begin, int64_t step, Ns step_time, const Pauses& pauses)
    : parts_{{begin, step, step_time}}, pauses_(pauses) {
  ENSURE(step_time > 0 && step >= 0, "a step of {} ns after step {}", step_time, step);
}

Ns AttemptClock::end_in(const Part& part, int64_t step) const {
  return part.begin + (step - part.step) * part.step_time + pauses_.all(part.step, step - 1);
}

void AttemptClock::change_pace(Ns at, Ns step_time) {
  if (at <= parts_.front().begin) {
    parts_.front().step_time = step_time;
    return;
  }
  int64_t step = steps_at(at);
  const auto begin_after = [&](int64_t finished) {
    return end_of(finished) + pauses_.all(std::max(finished - 1, first()), finished);
  };
  if (begin_after(step) <= at) ++step;  // the next one is under way
  if (parts_.back().step == step)       // that part has not begun
    parts_.back().step_time = step_time;
  else
    parts_.push_back({begin_after(step), step, step_time});
}

Ns AttemptClock::end_of(int64_t step) const {
  auto part = parts_.rbegin();
  while (part->step >= step && part + 1 != parts_.rend()) ++part;
  return end_in(*part, step);
}

int64_t AttemptClock::steps_at(Ns at) const {
  const Part& first = parts_.front();
  int64_t low = first.step;
  if (at <= first.begin) return low;
  Ns fastest = first.step_time;
  for (const Part& part : parts_) fastest = std::min(fastest, part.step_time);
  int64_t high = low + (at - first.begin) / fastest + 1;  // not finished then
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (end_of(middle) <= at ? low : high) = middle;
  }
  return low;
}

int64_t AttemptClock::saved_at(Ns at, int64_t every, Ns safe) const {
  if (every <= 0) return -1;
  const int64_t step = steps_at(at - safe) / every * every;
  return step > first() ? step : -1;
}

}  // namespace trainctl::simulate
