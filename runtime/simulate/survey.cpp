#include "runtime/simulate/survey.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "runtime/base/error.h"

namespace trainctl::simulate {
namespace {

/// A survey needs enough failures to tell its rows apart, and no more: they have the same ones. Several short
/// histories take less time than a long one, in which more nodes fail.
constexpr int kHistories = 4;
constexpr double kFailures = 150;
constexpr uint64_t kNextSeed = 0x9E3779B97F4A7C15;  // far from the seeds that people give

double failures_per_s(const FleetModel& fleet, const FailureSource& source) {
  double rate = 0;
  for (const FailureKind& kind : fleet.failures)
    rate += source.rate_times * fleet.rate_per_s(kind, source.gpus, source.nodes);
  return rate;
}

/// Around `center`, in whole steps, ascending.
std::vector<int64_t> steps_around(int64_t center) {
  std::vector<int64_t> steps;
  for (int half_octave = -8; half_octave <= 8; ++half_octave)
    if (half_octave % 2 == 0 || std::abs(half_octave) == 1)
      steps.push_back(std::max<int64_t>(1, std::llround(double(center) * std::exp2(half_octave / 2.0))));
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::vector<int> some_spares(int most) {
  std::vector<int> spares{0};
  for (int count = 1; count < most; count *= 2) spares.push_back(count);
  spares.push_back(std::max(most, 1));
  return spares;
}

using Histories = std::vector<std::vector<Failure>>;

void fill(std::vector<SurveyRow*> rows, const RunModel& run, const FleetModel& fleet,
          const Histories& histories, const SurveyOptions& options, Ns length) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) {
      RunModel one = run;
      one.spares = rows[i]->spares;
      double sum = 0;
      for (const std::vector<Failure>& failures : histories)
        sum +=
            simulate(one, fleet, failures, {.end = length, .saves = rows[i]->saves}).effective(run.step_time);
      rows[i]->effective = sum / double(histories.size());
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < options.threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace

Survey make_survey(const RunModel& run, const FleetModel& fleet, const SurveyOptions& options) {
  Survey survey{.length = options.end};
  const double rate = failures_per_s(fleet, options.source);
  if (rate > 0 && kFailures / rate < seconds_of(options.end)) survey.length = ns_of(kFailures / rate);
  Histories histories;
  for (int i = 0; i < kHistories; ++i) {
    FailureSource source = options.source;
    source.seed += uint64_t(i) * kNextSeed;
    histories.push_back(draw_failures(fleet, source, survey.length));
    survey.failures += int(histories.back().size());
  }
  survey.histories = kHistories;
  RunModel endless = run;
  endless.total_steps = INT64_MAX;  // its end would hide what is compared
  struct Tier {
    std::vector<SurveyRow>& rows;
    int64_t SaveSteps::*steps;
  };
  const Tier tiers[] = {{survey.memory, &SaveSteps::memory},
                        {survey.partner, &SaveSteps::partner},
                        {survey.directory, &SaveSteps::directory}};
  for (const auto& [rows, steps] : tiers) {
    if (options.saves.*steps <= 0) continue;
    for (const int64_t interval : steps_around(options.saves.*steps)) {
      rows.push_back({options.saves, run.spares, 0});
      rows.back().saves.*steps = interval;
    }
  }
  for (const int spares : some_spares(options.most_spares)) {
    survey.spares.push_back({options.saves, spares, 0});
    if (options.saves.directory > 0)
      for (const int64_t interval : steps_around(options.saves.directory)) {
        survey.grid.push_back({options.saves, spares, 0});
        survey.grid.back().saves.directory = interval;
      }
  }
  std::vector<SurveyRow*> rows;
  for (auto* list : {&survey.memory, &survey.partner, &survey.directory, &survey.spares, &survey.grid})
    for (SurveyRow& row : *list) rows.push_back(&row);
  fill(rows, endless, fleet, histories, options, survey.length);
  return survey;
}

const SurveyRow& best_of(const std::vector<SurveyRow>& rows) {
  ENSURE(!rows.empty());
  return *std::max_element(rows.begin(), rows.end(),
                           [](const SurveyRow& a, const SurveyRow& b) { return a.effective < b.effective; });
}

}  // namespace trainctl::simulate
