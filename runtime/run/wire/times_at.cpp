#include "runtime/run/wire/times_at.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl {

std::optional<TimesAt> TimesAt::parse(const std::string& text) {
  if (text.empty()) return std::nullopt;
  TimesAt times;
  const char* const end = text.data() + text.size();
  const auto compute = std::from_chars(text.data(), end, times.compute_s);
  const bool has_both = compute.ec == std::errc() && compute.ptr != end && *compute.ptr == ':';
  const auto wait = has_both ? std::from_chars(compute.ptr + 1, end, times.wait_s) : compute;
  const double step_s = times.compute_s + times.wait_s;
  if (!has_both || wait.ec != std::errc() || wait.ptr != end || !std::isfinite(step_s) ||
      times.compute_s <= 0 || times.wait_s < 0)
    throw Error(ErrorCode::kUsage,
                fmt::format("{}={} is not COMPUTE:WAIT, in seconds", kTimesAtVariable, text));
  return times;
}

RankTimes TimesAt::of(RankTimes measured) const {
  measured.forward_s = compute_s;
  measured.communication_s = wait_s;
  measured.backward_s = measured.optimizer_s = measured.data_s = measured.reporting_s = measured.pipeline_s =
      0;
  measured.step_s = compute_s + wait_s;
  return measured;
}

}  // namespace trainctl
