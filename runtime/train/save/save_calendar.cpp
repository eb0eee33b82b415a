#include "runtime/train/save/save_calendar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ckpt/interval.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

/// Steps that are measured before their duration counts.
constexpr size_t kFewestSteps = 3;
constexpr size_t kMostSteps = 33, kMostSaves = 8;
/// A smaller change of a decided interval is noise; so is one of the loss of a given interval.
constexpr double kChange = 0.1, kLossChange = 0.5;
/// Without a new measurement only the time between failures changes, slowly.
constexpr double kDecideS = kMinuteS;
/// So many saves of a given interval must be slow before that is said.
constexpr size_t kSlowSaves = 3;
constexpr double kLongestAutomaticS = kHourS;
constexpr double kFirstRetryS = 5, kLongestRetryS = 600;

IntervalReason reason_of(ckpt::IntervalBound bound) {
  switch (bound) {
    case ckpt::IntervalBound::least_loss: return IntervalReason::least_loss;
    case ckpt::IntervalBound::min_steps: return IntervalReason::min_steps;
    case ckpt::IntervalBound::write_time: return IntervalReason::write_time;
    case ckpt::IntervalBound::max_s: return IntervalReason::max_time;
  }
  ENSURE(false, "bound {}", int(bound));
}

std::string why(IntervalReason reason, SaveTier tier) {
  switch (reason) {
    case IntervalReason::every_steps:
      return tier == SaveTier::partner ? ", as checkpoint.partner_every_steps says"
                                       : ", as checkpoint.every_steps says";
    case IntervalReason::every_seconds: return ", as checkpoint.every_seconds says";
    case IntervalReason::write_time:
      return tier == SaveTier::partner ? ", four times as long as a save takes" : ", as long as a save takes";
    case IntervalReason::max_time: return ", the longest automatic interval";
    case IntervalReason::unmeasured:
    case IntervalReason::least_loss:
    case IntervalReason::min_steps: return "";
  }
  ENSURE(false, "reason {}", int(reason));
}

std::string seconds_text(double seconds) {
  return seconds < 60 ? fmt::format("{:.2g} s", seconds) : short_duration(seconds);
}

bool differs(double now, double before, double by) { return std::abs(now - before) > by * before; }

/// Whether `now` says something that `before` does not.
bool is_news(const SaveInterval& now, const SaveInterval& before) {
  if (now.automatic() != before.automatic()) return true;
  if (now.automatic()) return differs(double(now.steps), double(before.steps), kChange);
  return now.reason != before.reason || differs(now.loss, before.loss, kLossChange);
}

}  // namespace

std::string SaveInterval::text() const {
  if (reason == IntervalReason::unmeasured)
    return fmt::format("first save after {}{}{}; then from its measured cost",
                       steps > 0 ? count_of(steps, "step") : "", steps > 0 && interval_s > 0 ? " or " : "",
                       interval_s > 0 ? seconds_text(interval_s) : "");
  return fmt::format("every {} ({}){}: a save costs {}, one failure in {}; loses {:.2g} %",
                     count_of(steps, "step"), seconds_text(interval_s), why(reason, tier),
                     seconds_text(cost_s), seconds_text(mtbf_s), loss * 100);
}

std::string ShortInterval::text() const {
  return fmt::format(
      "a save to the {} is asked for every {} ({}), but takes {} until it is safe: {}; every {} would let "
      "each one finish",
      word_of(tier), count_of(steps, "step"), seconds_text(interval_s), seconds_text(write_s),
      waits ? "training waits for it each time" : "a save is left out while the one before is written",
      count_of(enough_steps, "step"));
}

void replace_interval(std::vector<SaveInterval>& intervals, const SaveInterval& now) {
  for (SaveInterval& interval : intervals)
    if (interval.tier == now.tier) return void(interval = now);
  intervals.push_back(now);
}

SaveRule directory_rule(const CheckpointSpec& checkpoint) {
  return {.tier = SaveTier::directory,
          .every_steps = checkpoint.every_steps,
          .every_s = checkpoint.every_seconds,
          .milestone_steps = checkpoint.keep_every_steps,
          .automatic = checkpoint.interval == SaveIntervalChoice::automatic};
}

SaveRule memory_rule() {
  return {.tier = SaveTier::memory, .automatic = true, .waits = false, .first_steps = 1};
}

SaveRule partner_rule(const CheckpointSpec& checkpoint) {
  return {.tier = SaveTier::partner,
          .every_steps = checkpoint.partner_every_steps,
          .automatic = checkpoint.partner_every_steps == 0,
          .waits = false,
          .rest = 4};
}

double assumed_mtbf_s(int nodes) {
  constexpr double kOfNodeS = 200 * kDayS, kMostS = 7 * kDayS;
  return std::min(kMostS, kOfNodeS / std::max(1, nodes));
}

void SaveCalendar::Recent::add(double value, size_t most) {
  if (values.size() < most) return values.push_back(value);
  values[next] = value;
  next = (next + 1) % most;
}
double SaveCalendar::Recent::mean() const {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / double(values.size());
}
double SaveCalendar::Recent::median() const {
  std::vector<double> sorted = values;
  const auto middle = sorted.begin() + ptrdiff_t(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

SaveCalendar::SaveCalendar(std::vector<SaveRule> rules, const std::vector<SaveHistory>& history,
                           const Start& start)
    : start_(start) {
  ENSURE(start.mtbf_s > 0, "{} s between failures", start.mtbf_s);
  for (SaveRule& rule : rules) {
    Tier tier{.rule = rule, .last_step = start.step, .last_s = start.now_s};
    for (const SaveHistory& before : history)
      if (before.tier == rule.tier) tier.history = before;
    tiers_.push_back(std::move(tier));
  }
}

SaveCalendar::Tier* SaveCalendar::find(SaveTier which) {
  for (Tier& tier : tiers_)
    if (tier.rule.tier == which) return &tier;
  return nullptr;
}

bool SaveCalendar::is_due(const Tier& tier, int64_t step, double now_s) const {
  const SaveRule& rule = tier.rule;
  if (now_s < tier.again_s) return false;
  if (rule.every_steps > 0 && step % rule.every_steps == 0) return true;
  if (rule.milestone_steps > 0 && step % rule.milestone_steps == 0) return true;
  if (rule.every_s > 0 && now_s - tier.last_s >= rule.every_s) return true;
  if (!rule.automatic) return false;
  if (now_s - tier.last_s >= kLongestAutomaticS) return true;
  const int64_t steps = tier.interval ? tier.interval->steps : rule.first_steps;
  return step - tier.last_step >= steps;
}

SaveSet SaveCalendar::due(int64_t step, double now_s) const {
  SaveSet set;
  for (const Tier& tier : tiers_)
    if (is_due(tier, step, now_s)) set.add(tier.rule.tier);
  return set;
}

void SaveCalendar::stepped(double seconds) {
  if (std::exchange(first_step_, false) || !(seconds > 0)) return;
  steps_.add(seconds, kMostSteps);
}
void SaveCalendar::stepped_beside(double seconds) {
  if (std::exchange(first_step_, false) || !(seconds > 0)) return;
  steps_beside_.add(seconds, kMostSteps);
  beside_s_ += seconds;
  ++beside_;
}
double SaveCalendar::take_cost_beside() {
  const double seconds = std::exchange(beside_s_, 0);
  const auto steps = double(std::exchange(beside_, 0));
  return steps_.values.size() < kFewestSteps ? 0 : std::max(0.0, seconds - steps * steps_.mean());
}

void SaveCalendar::began(SaveTier which, int64_t step, double now_s) {
  if (Tier* tier = find(which)) tier->last_step = step, tier->last_s = now_s;
}
void SaveCalendar::cost(SaveTier which, double seconds) {
  Tier* tier = find(which);
  if (!tier) return;
  tier->costs.add(std::max(0.0, seconds), kMostSaves);
  measured_ = true;
}
void SaveCalendar::safe(SaveTier which, double seconds) {
  Tier* tier = find(which);
  if (!tier) return;
  tier->writes.add(std::max(0.0, seconds), kMostSaves);
  tier->failures = 0;
  tier->again_s = 0;
  measured_ = true;
}
void SaveCalendar::failed(SaveTier which, double now_s) {
  Tier* tier = find(which);
  if (!tier || now_s < tier->again_s) return;  // it was begun before the last failure was known
  const int doublings = std::min(tier->failures++, 10);
  tier->again_s = now_s + std::min(kLongestRetryS, std::ldexp(kFirstRetryS, doublings));
}

double SaveCalendar::step_s(const Tier& tier) const {
  for (const Recent* steps : {&steps_, &steps_beside_})
    if (steps->values.size() >= kFewestSteps) return steps->median();
  return tier.history.step_s;
}

std::optional<SaveInterval> SaveCalendar::decide(const Tier& tier, double now_s) const {
  const bool measured = !tier.costs.none();
  const SaveRule& rule = tier.rule;
  const bool asked = rule.automatic || rule.every_steps > 0 || rule.every_s > 0;
  const double step = step_s(tier);
  if (!asked || step <= 0 || (!measured && tier.history.step_s <= 0)) return std::nullopt;
  const ckpt::IntervalFacts facts{
      .cost_s = measured ? tier.costs.mean() : tier.history.cost_s,
      .write_s = tier.writes.none() ? tier.history.write_s : tier.writes.mean(),
      .step_s = step,
      .given_mtbf_s = start_.mtbf_s,
      .mtbf_is_fixed = start_.mtbf_is_given,
      .failures = tier.history.failures,
      .observed_s = tier.history.observed_s + std::max(0.0, now_s - start_.now_s)};
  SaveInterval interval{.tier = rule.tier,
                        .step_s = step,
                        .cost_s = facts.cost_s,
                        .write_s = facts.write_s,
                        .mtbf_s = ckpt::mtbf_of(facts),
                        .failures = facts.failures,
                        .observed_s = facts.observed_s};
  if (rule.automatic) {
    const double longest_s = rule.every_s > 0 ? rule.every_s : kLongestAutomaticS;
    ckpt::IntervalFacts with_rest = facts;
    with_rest.write_s *= rule.rest;
    const ckpt::IntervalDecision best =
        ckpt::decide_interval(with_rest, {.min_steps = 1, .max_s = longest_s});
    interval.reason = reason_of(best.bound);
    interval.steps = best.steps;
  } else {
    // Whichever comes first.
    const double by_time = rule.every_s > 0 ? std::max(1.0, std::ceil(rule.every_s / step)) : INFINITY;
    const double by_steps = rule.every_steps > 0 ? double(rule.every_steps) : INFINITY;
    interval.reason = by_steps <= by_time ? IntervalReason::every_steps : IntervalReason::every_seconds;
    interval.steps = int64_t(std::min({by_steps, by_time, 1e15}));
  }
  interval.interval_s = double(interval.steps) * step;
  interval.loss = ckpt::interval_loss(facts, interval.interval_s);
  return interval;
}

std::optional<SaveInterval> SaveCalendar::first_save(const Tier& tier) const {
  const SaveRule& rule = tier.rule;
  if (!rule.automatic && rule.every_s <= 0) return std::nullopt;
  SaveInterval first{.tier = rule.tier,
                     .reason = IntervalReason::unmeasured,
                     .steps = rule.automatic ? rule.first_steps : 0,
                     .interval_s = rule.every_s,
                     .mtbf_s = start_.mtbf_s};
  if (rule.automatic && (rule.every_s <= 0 || rule.every_s > kLongestAutomaticS))
    first.interval_s = kLongestAutomaticS;
  for (const int64_t every : {rule.every_steps, rule.milestone_steps})
    if (const int64_t steps = every > 0 ? every - start_.step % every : 0;
        steps > 0 && (first.steps == 0 || steps < first.steps))
      first.steps = steps;
  return first;
}

std::vector<SaveInterval> SaveCalendar::take_changes(double now_s) {
  std::vector<SaveInterval> changes;
  if (!measured_ && now_s - decided_s_ < kDecideS) return changes;
  measured_ = false;
  decided_s_ = now_s;
  for (Tier& tier : tiers_) {
    const auto now = decide(tier, now_s);
    if (const auto first = now || std::exchange(tier.announced, true) ? std::nullopt : first_save(tier))
      changes.push_back(*first);
    if (!now || (tier.interval && !is_news(*now, *tier.interval))) continue;
    tier.interval = now;
    changes.push_back(*now);
  }
  return changes;
}

std::vector<ShortInterval> SaveCalendar::take_warnings() {
  std::vector<ShortInterval> warnings;
  for (Tier& tier : tiers_) {
    const auto& now = tier.interval;
    if (!now || tier.warned || now->automatic() || tier.writes.values.size() < kSlowSaves) continue;
    const double write_s = tier.writes.mean();
    if (write_s <= now->interval_s) continue;
    tier.warned = true;
    warnings.push_back({.tier = now->tier,
                        .steps = now->steps,
                        .interval_s = now->interval_s,
                        .write_s = write_s,
                        .enough_steps = int64_t(std::ceil(write_s / now->step_s)),
                        .waits = tier.rule.waits});
  }
  return warnings;
}

}  // namespace trainctl
