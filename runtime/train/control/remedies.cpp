#include "runtime/train/control/remedies.h"

#include <algorithm>

namespace trainctl {

double Remedies::rate_factor(int64_t step) const {
  double factor = 1;
  for (const LoweredRate& rate : rates)
    if (step >= rate.first_step && step < rate.first_step + rate.steps) factor *= rate.factor;
  return factor;
}

std::vector<SkippedSamples> merged(std::vector<SkippedSamples> ranges) {
  std::erase_if(ranges, [](const SkippedSamples& range) { return range.count <= 0; });
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<SkippedSamples> whole;
  for (const SkippedSamples& range : ranges) {
    if (whole.empty() || range.first > whole.back().end())
      whole.push_back(range);
    else
      whole.back().count = std::max(whole.back().end(), range.end()) - whole.back().first;
  }
  return whole;
}

Remedies with(Remedies known, const Remedies& more) {
  const auto add = [](auto& list, const auto& others) {
    for (const auto& item : others)
      if (std::count(list.begin(), list.end(), item) < std::count(others.begin(), others.end(), item))
        list.push_back(item);
  };
  add(known.skipped, more.skipped);
  add(known.rates, more.rates);
  return known;
}

uint64_t TrainedSamples::at(uint64_t n) const {
  for (const SkippedSamples& range : skipped_) {
    if (uint64_t(range.first) > n) break;
    n += uint64_t(range.count);
  }
  return n;
}

}  // namespace trainctl
