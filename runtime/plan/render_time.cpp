#include "runtime/plan/render_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/units.h"
#include "runtime/plan/power.h"

namespace trainctl {
namespace {

/// "products 61.0 %, attention 20.1 %": what takes at least a thousandth, longest first.
std::string time_parts_text(const StepTime& time) {
  std::vector<NamedSeconds> parts = named(time.parts);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const NamedSeconds& a, const NamedSeconds& b) { return a.seconds > b.seconds; });
  std::string text;
  for (const NamedSeconds& part : parts)
    if (const double share = part.seconds / time.step_s; share >= 0.001)
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", part.name, 100 * share);
  return text;
}

/// What the time is for, and how it is known.
std::string predicted_lines(const PlanReport& r, const TimeEstimate& t) {
  std::string out = fmt::format("Time     predicted {} a step (nine of ten runs: {} to {}), {} tokens/s, {} for {} tokens\n",
                                duration_text(t.step_s), duration_text(t.predicted->low_s),
                                duration_text(t.predicted->high_s), count_text(t.tokens_per_s),
                                duration_text(t.run_s), count_text(t.tokens));
  out += fmt::format(
      "         MFU {:.1f} % of {}FLOP/s ({:.1f} % if attention were full), from cluster {}; --mfu assumes "
      "an MFU instead\n",
      100 * t.mfu, short_number(t.peak_flops_per_s), 100 * t.mfu_full, r.device.cluster->name);
  return out + fmt::format("         {}\n", time_parts_text(*t.predicted));
}

/// What the asked tokens take.
double asked_s(const PlanReport& r) { return r.asked->tokens / r.time->tokens_per_s; }

std::string asked_line(const PlanReport& r, const Claim& claim) {
  return fmt::format("Asked    {} tokens in {:g} days: {}; {} as {}\n", count_text(r.asked->tokens),
                     r.asked->days, claim_text(claim), duration_text(asked_s(r)),
                     r.time->predicted ? "predicted" : "assumed");
}

}  // namespace

std::optional<Claim> claim_of(const PlanReport& r) {
  if (!r.asked || !r.time) return std::nullopt;
  const double flops = r.plan.flops_per_step_causal / double(r.plan.tokens_per_step) * r.asked->tokens;
  return Claim{flops, r.asked->days * kDayS, r.time->devices, r.time->peak_flops_per_s,
               r.device.cluster ? r.device.cluster->device.product_share : 1};
}

std::string time_lines(const PlanReport& r) {
  std::string out = fmt::format(
      "FLOPs    {} a step (causal attention; {} if attention were full) · {} in {} steps of {} tokens\n",
      flop_text(r.plan.flops_per_step_causal), flop_text(r.plan.flops_per_step_full),
      flop_text(r.plan.flops_per_step_causal * double(r.job.schedule.total_steps)),
      r.job.schedule.total_steps, count_text(double(r.plan.tokens_per_step)));
  if (!r.time)
    return out + (r.device.kind == DeviceKind::cuda
                      ? "Time     not known: the peak of this device is not; name a GPU: --device h100\n"
                      : "");
  const TimeEstimate& t = *r.time;
  const std::string share =
      r.device.measured ? fmt::format("{:.0f} % of this machine's measured {:.0f} GFLOP/s a rank",
                                      100 * t.mfu, t.peak_flops_per_s / 1e9)
                        : fmt::format("an assumed MFU of {:.0f} % of {:.0f} TFLOP/s ({}; --mfu changes it)",
                                      100 * t.mfu, t.peak_flops_per_s / 1e12, r.device.name);
  if (t.predicted)
    out += predicted_lines(r, t);
  else
    out += fmt::format("Time     about {} a step, {} tokens/s, {} for {} tokens, at {}\n",
                       duration_text(t.step_s), count_text(t.tokens_per_s), duration_text(t.run_s),
                       count_text(t.tokens), share);
  if (r.device.kind == DeviceKind::cuda)
    out += fmt::format("         {} GPU-hours on {} GPU{}\n", count_text(t.device_hours), t.devices,
                       t.devices == 1 ? "" : "s");
  if (const auto power = power_of(r.device); power && t.device_hours > 0)
    out += fmt::format("Energy   {} {}\n", energy_text(t.device_hours * power->kwh_of_device_hour),
                       power_text(*power));
  if (const auto claim = claim_of(r)) out += asked_line(r, *claim);
  if (r.price) {
    const double cost = t.device_hours * r.price->per_gpu_hour;
    out += fmt::format("Cost     {0} {1}, {0} {2} for 10^12 tokens, at {0} {3} a GPU-hour ({4})\n",
                       r.price->currency, count_text(cost), count_text(cost / t.tokens * 1e12),
                       r.price->per_gpu_hour, r.price->date);
  }
  return out;
}

OrderedJson time_json(const PlanReport& r) {
  const TimeEstimate& t = *r.time;
  OrderedJson json = {{"mfu", t.mfu},
                      {"peak_flops_per_s", t.peak_flops_per_s},
                      {"devices", t.devices},
                      {"step_seconds", t.step_s},
                      {"tokens_per_s", t.tokens_per_s},
                      {"steps", r.job.schedule.total_steps},
                      {"tokens", t.tokens},
                      {"flops", t.flops},
                      {"hours", t.run_s / kHourS},
                      {"device_hours", t.device_hours},
                      {"mfu_full", t.mfu_full}};
  if (const auto power = power_of(r.device); power && t.device_hours > 0)
    json["energy"] = energy_json(*power, t.device_hours);
  if (r.price)
    json["cost"] = {{"total", t.device_hours * r.price->per_gpu_hour},
                    {"currency", r.price->currency},
                    {"per_gpu_hour", r.price->per_gpu_hour},
                    {"date", r.price->date}};
  if (const auto claim = claim_of(r))
    json["asked"] = {{"days", r.asked->days},
                     {"tokens", r.asked->tokens},
                     {"predicted_days", asked_s(r) / kDayS},
                     {"share_of_peak", claim->share_of_peak()},
                     {"possible", judge(*claim) == ClaimVerdict::possible},
                     {"text", claim_text(*claim)}};
  if (t.predicted) {
    OrderedJson parts = OrderedJson::object();
    for (const NamedSeconds& part : named(t.predicted->parts)) parts[part.name] = part.seconds;
    json["predicted"] = {{"cluster", r.device.cluster->name},
                         {"low_seconds", t.predicted->low_s},
                         {"high_seconds", t.predicted->high_s},
                         {"bubble_fraction", t.predicted->bubble_fraction},
                         {"seconds", std::move(parts)}};
  }
  return json;
}

}  // namespace trainctl
