#include "runtime/observe/trace/lanes.h"

#include <algorithm>
#include <tuple>

namespace trainctl::trace {
namespace {

/// The ends of the slices that are open in a lane, innermost last.
using OpenEnds = std::vector<int64_t>;

bool fits(OpenEnds& open, const PlacedSpan& span) {
  while (!open.empty() && open.back() <= span.begin_ns) open.pop_back();
  return open.empty() || (span.lane == Lane::compute && span.end_ns <= open.back());
}

}  // namespace

Lane lane_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::exchange: return Lane::communication;
    case SpanKind::data: return Lane::data;
    case SpanKind::save: return Lane::saves;
    default: return Lane::compute;
  }
}

void assign_lanes(std::vector<PlacedSpan>& spans) {
  // Of spans with equal times the one that ended later, which is the outer one, has the larger index.
  std::sort(spans.begin(), spans.end(), [](const PlacedSpan& a, const PlacedSpan& b) {
    return std::tuple(a.lane, a.begin_ns, b.end_ns, b.index) <
           std::tuple(b.lane, b.begin_ns, a.end_ns, a.index);
  });
  std::vector<OpenEnds> lanes;
  Lane lane = Lane::compute;
  for (PlacedSpan& span : spans) {
    if (span.lane != lane) lanes.clear(), lane = span.lane;
    span.overflow = 0;
    while (span.overflow < lanes.size() && !fits(lanes[span.overflow], span)) ++span.overflow;
    if (span.overflow == lanes.size()) lanes.emplace_back();
    lanes[span.overflow].push_back(span.end_ns);
  }
}

}  // namespace trainctl::trace
