#include "runtime/base/units.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "runtime/base/digits.h"

namespace trainctl {
namespace {

using UnitFactor = std::pair<std::string_view, double>;

template <size_t N>
std::optional<double> factor_of(const UnitFactor (&units)[N], std::string_view unit) {
  for (const auto& [name, factor] : units)
    if (name == unit) return factor;
  return std::nullopt;
}

}  // namespace

std::string short_number(double value) {
  if (std::isnan(value)) return "-";
  for (const auto& [scale, unit] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (value >= 0.9995 * scale) return fmt::format("{:.3g} {}", value / scale, unit);  // 999.5 is a thousand
  return fmt::format("{:.3g}", value);
}

std::string count_text(double n) {
  for (const auto& [scale, unit] : {std::pair{1e15, "P"}, {1e12, "T"}, {1e9, "B"}, {1e6, "M"}})
    if (n >= scale) return fmt::format("{:.2f} {}", n / scale, unit);
  if (n >= 1e3) return fmt::format("{:.1f} k", n / 1e3);
  return fmt::format("{:.0f}", n);
}

std::string tally_text(uint64_t n) {
  if (n < 10'000) return fmt::format("{}", n);
  const double x = double(n);
  if (n < 1'000'000) return fmt::format("{:.1f} k", x / 1e3);
  return n < 1'000'000'000 ? fmt::format("{:.2f} M", x / 1e6) : fmt::format("{:.2f} G", x / 1e9);
}

std::string flop_text(double n) {
  if (n >= 1e18) {  // beyond the prefixes that people know
    const int exponent = int(std::floor(std::log10(n)));
    return fmt::format("{:.2f}e{} FLOP", n / std::pow(10, exponent), exponent);
  }
  std::string text = count_text(n);
  if (text.back() == 'B') text.back() = 'G';  // by SI
  return text + "FLOP";
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  constexpr int64_t kMinute = int64_t(kMinuteS), kHour = int64_t(kHourS), kDay = int64_t(kDayS);
  const int64_t s = int64_t(seconds + 0.5);
  if (s >= kDay) return fmt::format("{}d {}h", s / kDay, s % kDay / kHour);
  if (s >= kHour) return fmt::format("{}h {}m", s / kHour, s % kHour / kMinute);
  if (s >= kMinute) return fmt::format("{}m {}s", s / kMinute, s % kMinute);
  return fmt::format("{}s", s);
}

std::string duration_text(double s) {
  if (s < 10) return fmt::format("{:.2g} s", s);
  if (s < 2 * kMinuteS) return fmt::format("{:.0f} s", s);
  if (s < 2 * kHourS) return fmt::format("{:.0f} min", s / kMinuteS);
  if (s < 2 * kDayS) return fmt::format("{:.1f} h", s / kHourS);
  if (s < 2 * 365 * kDayS) return fmt::format("{:.1f} days", s / kDayS);
  return fmt::format("{:.0f} years", s / (365.25 * kDayS));
}

std::string size_text(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = double(bytes);
  const char* unit = "B";
  for (const char* larger : {"kB", "MB", "GB", "TB", "PB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = larger;
  }
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, unit);
}

std::string memory_text(double bytes) {
  if (bytes >= kTebibyte) return fmt::format("{:.2f} TiB", bytes / kTebibyte);
  if (bytes >= kGibibyte) return fmt::format("{:.2f} GiB", bytes / kGibibyte);
  if (bytes >= kMebibyte) return fmt::format("{:.1f} MiB", bytes / kMebibyte);
  return fmt::format("{:.1f} KiB", bytes / kKibibyte);
}

std::string brief_memory_text(uint64_t bytes) {
  const double mib = double(bytes) / kMebibyte;
  return mib >= 1024 ? fmt::format("{:.1f} GiB", mib / 1024) : fmt::format("{:.0f} MiB", mib);
}

std::string utc_text(double unix_s) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time_t(unix_s)));
}

std::optional<double> bytes_of_unit(std::string_view unit) {
  static constexpr UnitFactor kUnits[] = {{"KiB", kKibibyte}, {"MiB", kMebibyte}, {"GiB", kGibibyte},
                                          {"TiB", kTebibyte}, {"kB", 1e3},        {"MB", 1e6},
                                          {"GB", 1e9},        {"TB", 1e12}};
  return factor_of(kUnits, unit);
}

std::optional<double> seconds_of_unit(std::string_view unit) {
  static constexpr UnitFactor kUnits[] = {{"ms", 1e-3},      {"s", 1},      {"m", kMinuteS},
                                          {"min", kMinuteS}, {"h", kHourS}, {"d", kDayS}};
  return factor_of(kUnits, unit);
}

std::optional<uint64_t> bytes_of(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto number = decimal_number(std::string_view(text).substr(0, digits));
  std::string_view unit = std::string_view(text).substr(digits);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const auto factor = bytes_of_unit(unit);
  if (!number || !factor || !(*number > 0) || !(*number * *factor < 0x1p60)) return std::nullopt;
  return uint64_t(*number * *factor);
}

}  // namespace trainctl
