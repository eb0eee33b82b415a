#include "runtime/observe/report/measured_step.h"

#include <algorithm>
#include <cmath>

namespace trainctl::report {
namespace {

template <typename Number>
double median_of(const std::vector<const StepLine*>& lines, Number number) {
  std::vector<double> values;
  for (const StepLine* line : lines)
    if (const double value = number(*line); std::isfinite(value)) values.push_back(value);
  if (values.empty()) return 0;
  const auto middle = values.begin() + ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

MeasuredStep measured_step(const std::vector<StepLine>& lines, uint64_t attempt) {
  std::vector<const StepLine*> timed;
  for (const StepLine& line : lines)
    if (line.phases && std::isfinite(line.step_s) && std::isfinite(line.phases->forward_s) && !line.skipped &&
        (attempt == 0 || line.attempt == attempt))
      timed.push_back(&line);
  if (timed.empty()) return {};
  const int64_t warm = timed.front()->step + kWarmUpSteps;
  if (timed.back()->step >= warm) std::erase_if(timed, [&](const StepLine* l) { return l->step < warm; });
  const auto phase = [&](double Phases::*of) {
    return median_of(timed, [of](const StepLine& line) { return (*line.phases).*of; });
  };
  MeasuredStep step{.steps = int64_t(timed.size()), .first = timed.front()->step, .last = timed.back()->step};
  step.step_s = median_of(timed, [](const StepLine& line) { return line.step_s; });
  step.forward_s = phase(&Phases::forward_s);
  step.backward_s = phase(&Phases::backward_s);
  step.waiting_s = phase(&Phases::communication_s);
  step.optimizer_s = phase(&Phases::optimizer_s);
  step.data_s = phase(&Phases::data_s);
  step.reporting_s = phase(&Phases::reporting_s);
  step.uneven_s = median_of(timed, [](const StepLine& line) {
    return line.compute() ? line.compute()->max - line.compute()->median : 0;
  });
  return step;
}

}  // namespace trainctl::report
