#include "runtime/run/record/loss_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainctl {
namespace {

/// Of a normal distribution: its standard deviation over its median distance from the median.
constexpr double kNormal = 1.4826;
/// A loss whose spread is smaller than this share of it is as smooth as if it had that spread; one of less
/// than a nat, as that of texts that are known by heart, as if it had that of one nat.
constexpr double kLeastShare = 0.005;
/// Of the loss of one source, which has fewer samples.
constexpr double kLeastSourceShare = 0.01;
/// Likewise of the logarithm of the gradient norm.
constexpr double kLeastLog = 0.05;
/// A plateau falls by less than this share.
constexpr double kPlateau = 0.001;
/// A collapse begins with this share of experts without a token, and ends at half of it.
constexpr double kIdle = 0.5;

double median(std::vector<double> values) {
  const size_t half = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + ptrdiff_t(half), values.end());
  if (values.size() % 2 == 1) return values[half];
  return (values[half] + *std::max_element(values.begin(), values.begin() + ptrdiff_t(half))) / 2;
}

/// "step 12", "steps 12 to 14"
std::string steps_text(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

}  // namespace

std::string LossIncident::text() const {
  const std::string steps = steps_text(first, last);
  switch (kind) {
    case LossTrouble::spike:
      return fmt::format("the {} rose to {:.4g} in {}, {:.3g} deviations above its usual {:.4g}", of, worst,
                         steps, score, usual);
    case LossTrouble::divergence:
      return fmt::format(
          "the {} has left its level: {} are at up to {:.4g}, {:.3g} deviations above the "
          "usual {:.4g}",
          of, steps, worst, score, usual);
    case LossTrouble::plateau:
      return fmt::format("the {} does not fall any more: over {} its median went from {:.5g} to {:.5g}", of,
                         steps, usual, worst);
    case LossTrouble::not_finite:
      return fmt::format("the {} of step {} is not finite, {} step{} after the state of step {} was loaded",
                         of, first, first - int64_t(usual), first - int64_t(usual) == 1 ? "" : "s",
                         int64_t(usual));
    case LossTrouble::experts:
      return fmt::format("in {} up to {:.3g} % of the experts had no token", steps, worst * 100);
  }
  return "";
}

LossMonitor::LossMonitor(const LossMonitorSpec& spec, int64_t global_sequences)
    : spec_(spec), global_sequences_(global_sequences) {
  series_.push_back({.name = "loss",
                     .value = [](const StepLine& line) { return line.loss; },
                     .least_deviation = kLeastShare});
  series_.push_back({.name = "grad norm",
                     .value = [](const StepLine& line) { return std::log(line.grad_norm); },
                     .least_deviation = kLeastLog,
                     .relative = false});
}

void LossMonitor::add_modules(size_t count) {
  for (size_t i = series_.size() - 2; i < count; ++i)
    series_.push_back({.name = fmt::format("mtp loss {}", i + 1),
                       .value =
                           [i](const StepLine& line) {
                             return i < line.mtp_losses.size() ? line.mtp_losses[i] : StepLine::kAbsent;
                           },
                       .least_deviation = kLeastShare});
}

std::vector<LossIncident> LossMonitor::step(const StepLine& line) {
  std::vector<LossIncident> found;
  if (spec_.policy == LossPolicy::off) return found;
  const auto add = [&](std::optional<LossIncident> incident) {
    if (incident) found.push_back(std::move(*incident));
  };
  if (line.skipped && !line.overflow && loaded_ && line.step <= *loaded_ + kAfterLoad)
    found.push_back({.kind = LossTrouble::not_finite,
                     .of = std::isfinite(line.loss) ? "grad norm" : "loss",
                     .first = line.step,
                     .last = line.step,
                     .usual = double(*loaded_)});
  samples_.push_back(line.sample);
  if (int64_t(samples_.size()) > spec_.lead_steps + 1) samples_.pop_front();
  add_modules(line.mtp_losses.size());
  for (Series& series : series_) add(take(series, judge(series, line), line, true));
  for (LossIncident& incident : take_sources(line)) found.push_back(std::move(incident));
  add(plateau(line));
  add(experts(line));
  return found;
}

void LossMonitor::add_sources(const std::vector<SourceLoss>& sources) {
  for (const SourceLoss& source : sources) {
    const auto same = [&](const Series& series) { return series.source == source.name; };
    if (std::any_of(sources_.begin(), sources_.end(), same)) continue;
    sources_.push_back({.name = "loss of source " + source.name,
                        .value =
                            [name = source.name](const StepLine& line) {
                              for (const SourceLoss& one : line.sources)
                                if (one.name == name) return one.loss;
                              return StepLine::kAbsent;
                            },
                        .source = source.name,
                        .least_deviation = kLeastSourceShare});
  }
}

/// What most sources of the step share is the matter of the whole loss.
std::vector<LossIncident> LossMonitor::take_sources(const StepLine& line) {
  add_sources(line.sources);
  std::vector<Judged> judged;
  for (const Series& series : sources_) judged.push_back(judge(series, line));
  const auto bad = std::count_if(judged.begin(), judged.end(), [](const Judged& j) { return j.is_bad; });
  const bool opens = bad == 1 || 2 * bad <= int64_t(line.sources.size());
  std::vector<LossIncident> found;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (auto incident = take(sources_[i], judged[i], line, opens)) found.push_back(std::move(*incident));
  return found;
}

LossMonitor::Judged LossMonitor::judge(const Series& series, const StepLine& line) const {
  Judged judged{.value = series.value(line)};
  if (!std::isfinite(judged.value) || int64_t(series.usual.size()) < spec_.window) return judged;
  judged.usual = median({series.usual.begin(), series.usual.end()});
  std::vector<double> distances;
  for (const double usual : series.usual) distances.push_back(std::abs(usual - judged.usual));
  const double least = series.least_deviation * (series.relative ? std::max(std::abs(judged.usual), 1.0) : 1);
  judged.score = (judged.value - judged.usual) / std::max(kNormal * median(std::move(distances)), least);
  judged.is_bad = judged.score > spec_.threshold;
  return judged;
}

std::optional<LossIncident> LossMonitor::take(Series& series, const Judged& judged, const StepLine& line,
                                              bool opens) const {
  if (!std::isfinite(judged.value)) return std::nullopt;  // skipped by itself: bad_steps.h
  const bool bad = judged.is_bad;
  const double shown = series.relative ? judged.value : line.grad_norm;
  if (bad && opens && !series.open)
    series.open = LossIncident{.of = series.name,
                               .source = series.source,
                               .first = line.step,
                               .first_value = shown,
                               .worst = shown,
                               .usual = series.relative ? judged.usual : std::exp(judged.usual),
                               .score = judged.score,
                               .lead_sample = samples_.front(),
                               .sample = line.sample};
  if (bad && series.open) {
    LossIncident& open = *series.open;
    open.last = line.step;
    open.worst = std::max(open.worst, shown);
    open.sample_end = line.sample < 0 ? -1 : line.sample + global_sequences_;
  }
  std::optional<LossIncident> found;
  if (series.open && !bad) found = std::exchange(series.open, std::nullopt);
  if (series.open && series.open->last - series.open->first + 1 >= spec_.diverged_steps) {
    found = std::exchange(series.open, std::nullopt);
    found->kind = LossTrouble::divergence;
    series.usual.clear();  // what comes is compared with the new level
  }
  if (bad) return found;
  series.usual.push_back(judged.value);
  if (int64_t(series.usual.size()) > spec_.window) series.usual.pop_front();
  return found;
}

std::optional<LossIncident> LossMonitor::plateau(const StepLine& line) {
  const int64_t steps = spec_.plateau_steps;
  if (steps < 2 || !std::isfinite(line.loss)) return std::nullopt;
  long_losses_.push_back(line.loss);
  if (int64_t(long_losses_.size()) > steps) long_losses_.pop_front();
  // Medians of many values, now and then.
  if (int64_t(long_losses_.size()) < steps || line.step % std::max<int64_t>(1, steps / 20) != 0)
    return std::nullopt;
  const auto half = long_losses_.begin() + ptrdiff_t(steps / 2);
  const double before = median({long_losses_.begin(), half}), now = median({half, long_losses_.end()});
  const bool flat = now > before * (1 - kPlateau);
  if (!flat || std::exchange(noticed_plateau_, flat)) {
    noticed_plateau_ = flat;
    return std::nullopt;
  }
  return LossIncident{.kind = LossTrouble::plateau,
                      .first = line.step - steps + 1,
                      .last = line.step,
                      .first_value = line.loss,
                      .worst = now,
                      .usual = before};
}

std::optional<LossIncident> LossMonitor::experts(const StepLine& line) {
  if (!std::isfinite(line.idle_experts)) return std::nullopt;
  if (line.idle_experts < kIdle / 2) noticed_experts_ = false;
  idle_steps_ = line.idle_experts >= kIdle ? idle_steps_ + 1 : 0;
  if (idle_steps_ < spec_.diverged_steps || std::exchange(noticed_experts_, true)) return std::nullopt;
  return LossIncident{.kind = LossTrouble::experts,
                      .of = "idle experts",
                      .first = line.step - idle_steps_ + 1,
                      .last = line.step,
                      .first_value = line.idle_experts,
                      .worst = line.idle_experts};
}

}  // namespace trainctl
