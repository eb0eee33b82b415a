#include "runtime/observe/sparkline.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainctl {

std::pair<double, double> range_of(std::span<const double> values) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::pair<double, double> range{kNone, kNone};
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    if (!(range.first <= value)) range.first = value;
    if (!(range.second >= value)) range.second = value;
  }
  return range;
}

std::string sparkline(std::span<const double> values, double low, double high) {
  static const char* const kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string line;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      line += ' ';
      continue;
    }
    const double share = high > low ? (value - low) / (high - low) : 0.5;
    line += kBlocks[std::clamp(int(share * 8), 0, 7)];
  }
  return line;
}

std::vector<double> shortened(std::span<const double> values, size_t width) {
  if (values.size() <= width) return {values.begin(), values.end()};
  std::vector<double> result;
  for (size_t c = 0; c < width; ++c) {
    double sum = 0;
    int count = 0;
    for (size_t i = values.size() * c / width; i < values.size() * (c + 1) / width; ++i)
      if (std::isfinite(values[i])) sum += values[i], ++count;
    result.push_back(count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN());
  }
  return result;
}

std::string bar(double share, int width) {
  static const char* const kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = int((std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0) * width * 8);
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  text += kParts[eighths % 8];
  const int used = eighths / 8 + (eighths % 8 ? 1 : 0);
  return text + std::string(size_t(std::max(0, width - used)), ' ');
}

}  // namespace trainctl
