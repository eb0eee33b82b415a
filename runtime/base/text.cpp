#include "runtime/base/text.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace trainctl {

std::string count_of(int64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

std::string short_number(double value) {
  if (std::isnan(value)) return "-";
  for (const auto& [scale, unit] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (value >= scale) return fmt::format("{:.3g} {}", value / scale, unit);
  return fmt::format("{:.3g}", value);
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const int64_t s = int64_t(seconds + 0.5);
  if (s >= 86400) return fmt::format("{}d {}h", s / 86400, s % 86400 / 3600);
  if (s >= 3600) return fmt::format("{}h {}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m {}s", s / 60, s % 60);
  return fmt::format("{}s", s);
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
  constexpr double kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;
  if (bytes >= kTi) return fmt::format("{:.2f} TiB", bytes / kTi);
  if (bytes >= kGi) return fmt::format("{:.2f} GiB", bytes / kGi);
  if (bytes >= kMi) return fmt::format("{:.1f} MiB", bytes / kMi);
  return fmt::format("{:.1f} KiB", bytes / kKi);
}

std::string shell_quoted(const std::string& text) {
  const bool plain =
      !text.empty() &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%^") ==
          std::string::npos;
  if (plain) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

std::string last_line_of(std::string_view text) {
  const size_t last = text.find_last_not_of("\n\r ");
  if (last == std::string_view::npos) return "";
  const size_t before = text.find_last_of("\n\r", last);
  const size_t begin = before == std::string_view::npos ? 0 : before + 1;
  return std::string(text.substr(begin, last - begin + 1));
}

}  // namespace trainctl
