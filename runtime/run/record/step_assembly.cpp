#include "runtime/run/record/step_assembly.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/record.h"

namespace trainctl {

StepRecord record_of(const StepReport& report, std::span<const RankTimes> ranks,
                     std::span<const NodeRanks> nodes) {
  StepRecord record{.line = report.line, .log = report.log, .ranks = "", .experts = report.experts};
  if (!report.work || ranks.empty()) return record;
  record.line = with_ranks(std::move(record.line), *report.work, ranks, nodes);
  record.times.assign(ranks.begin(), ranks.end());
  record.stages = report.work->stages;
  if (report.each_rank) record.ranks = rank_numbers_json(record.line.attempt, record.line.step, ranks);
  return record;
}

void StepAssembly::report(const StepReport& report, uint64_t sequence, double now_s) {
  if (report.line.step <= taken_) return;
  Step& step = steps_[report.line.step];
  if (step.report) return;  // it was sent again
  step.report = report;
  step.sequence = sequence;
  step.since_s = now_s;
}

void StepAssembly::times(int64_t number, int rank, const RankTimes& times) {
  ENSURE(rank >= 0 && rank < options_.ranks, "rank {} of {}", rank, options_.ranks);
  if (number <= taken_) return;
  Step& step = steps_[number];
  if (step.times.empty()) {
    step.times.assign(size_t(options_.ranks), RankTimes::none());
    step.missing = options_.ranks;
  }
  RankTimes& known = step.times[size_t(rank)];
  if (!known.came() && times.came()) --step.missing;
  known = times;
  // Of steps that rank 0 has not reported yet the newest stay: its node may be slow to be heard.
  while (steps_.size() > kMostSteps && !steps_.begin()->second.report) steps_.erase(steps_.begin());
}

std::vector<StepRecord> StepAssembly::take(double now_s) {
  std::vector<StepRecord> records;
  while (const Step* const oldest = oldest_report()) {
    const bool late = now_s - oldest->since_s >= options_.patience_s || steps_.size() > kMostSteps;
    if (!late && !is_complete(*oldest)) break;
    records.push_back(take_first());
  }
  return records;
}

std::vector<StepRecord> StepAssembly::take_all() {
  std::vector<StepRecord> records;
  while (oldest_report()) records.push_back(take_first());
  return records;
}

const StepAssembly::Step* StepAssembly::oldest_report() const {
  const auto found =
      std::find_if(steps_.begin(), steps_.end(), [](const auto& step) { return step.second.report; });
  return found == steps_.end() ? nullptr : &found->second;
}

/// Rank 0 reports in the order of steps: no report of an earlier one will come.
StepRecord StepAssembly::take_first() {
  while (!steps_.begin()->second.report) steps_.erase(steps_.begin());
  const Step step = std::move(steps_.begin()->second);
  steps_.erase(steps_.begin());
  ENSURE(step.report && step.report->line.step > taken_);  // steps only rise
  taken_ = step.report->line.step;
  return record_of(*step.report, step.times, options_.nodes);
}

std::optional<uint64_t> StepAssembly::oldest_sequence() const {
  const Step* const oldest = oldest_report();
  return oldest ? std::optional(oldest->sequence) : std::nullopt;
}

double StepAssembly::deadline_s() const {
  const Step* const oldest = oldest_report();
  return oldest ? oldest->since_s + options_.patience_s : std::numeric_limits<double>::infinity();
}

}  // namespace trainctl
