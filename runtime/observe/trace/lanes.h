// Lanes: where each span of a rank is drawn. Slices of one lane nest or lie behind each other, as viewers of
// Chrome's trace format require. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/spans/span.h"

namespace trainctl::trace {

/// What the main thread did; transfers under way; reading of samples; saves.
enum class Lane : uint8_t { compute, communication, data, saves };
inline constexpr int kLanes = int(Lane::saves) + 1;
Lane lane_of(SpanKind kind);

/// A span with its times on the common clock.
struct PlacedSpan {
  uint32_t index = 0;  ///< in Recording::spans
  Lane lane = Lane::compute;
  uint16_t overflow = 0;  ///< 0: the lane itself; n: its n-th overflow lane
  int64_t begin_ns = 0, end_ns = 0;
};

/// Sorts the spans by lane, begin, and the longer first, and sets their overflow lanes: the first one in
/// which a span fits. In the lane compute a span may lie within another one; in the others none overlap.
void assign_lanes(std::vector<PlacedSpan>& spans);

}  // namespace trainctl::trace
