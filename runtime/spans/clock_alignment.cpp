#include "runtime/spans/clock_alignment.h"

#include <algorithm>

namespace trainctl {

std::optional<ClockOffset> offset_of(std::span<const ClockSample> samples) {
  const auto round_trip_s = [](const ClockSample& s) { return s.heard_s - s.sent_s; };
  const auto best = std::min_element(samples.begin(), samples.end(), [&](const auto& a, const auto& b) {
    return round_trip_s(a) < round_trip_s(b);
  });
  if (best == samples.end()) return std::nullopt;
  const double middle_s = best->sent_s + round_trip_s(*best) / 2;
  return ClockOffset{middle_s, best->node_s - middle_s, round_trip_s(*best) / 2};
}

double ClockAlignment::own_s(double node_s) const {
  const double first_s = before_.at_s + before_.offset_s, last_s = after_.at_s + after_.offset_s;
  // By the node's clock, so that the answer needs no iteration.
  if (node_s <= first_s || last_s <= first_s) return node_s - before_.offset_s;
  if (node_s >= last_s) return node_s - after_.offset_s;
  const double share = (node_s - first_s) / (last_s - first_s);
  return before_.at_s + share * (after_.at_s - before_.at_s);
}

}  // namespace trainctl
