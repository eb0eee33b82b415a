// Goal: slices of one lane nest or lie behind each other, each span is placed once, and as few lanes are
// beside as the spans need.
// Method: every small set of intervals on a short line; random spans of all kinds (seeded), whose lanes are
// checked by an independent look at every pair.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "runtime/observe/trace/lanes.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;
using namespace trainctl::trace;

namespace {

bool overlap(const PlacedSpan& a, const PlacedSpan& b) {
  return std::max(a.begin_ns, b.begin_ns) < std::min(a.end_ns, b.end_ns);
}
bool contains(const PlacedSpan& outer, const PlacedSpan& inner) {
  return outer.begin_ns <= inner.begin_ns && inner.end_ns <= outer.end_ns;
}

void check(const std::vector<PlacedSpan>& spans) {
  std::vector<uint32_t> indices;
  for (size_t i = 0; i < spans.size(); ++i) {
    indices.push_back(spans[i].index);
    for (size_t j = 0; j < i; ++j) {
      const PlacedSpan &a = spans[j], &b = spans[i];
      if (a.lane != b.lane || a.overflow != b.overflow) continue;
      CHECK(a.begin_ns <= b.begin_ns);
      if (!overlap(a, b)) continue;
      CHECK(a.lane == Lane::compute);
      CHECK(contains(a, b));
    }
  }
  std::sort(indices.begin(), indices.end());
  for (size_t i = 0; i < indices.size(); ++i) CHECK(indices[i] == i);
}

/// The most spans of a lane that are under way at one time.
int most_at_once(const std::vector<PlacedSpan>& spans, Lane lane) {
  int most = 0;
  for (const PlacedSpan& at : spans) {
    if (at.lane != lane) continue;
    most = std::max(most, int(std::count_if(spans.begin(), spans.end(), [&](const PlacedSpan& s) {
                      return s.lane == lane && s.begin_ns <= at.begin_ns && at.begin_ns < s.end_ns;
                    })));
  }
  return most;
}

}  // namespace

TEST_CASE("each kind of span has its lane") {
  CHECK(lane_of(SpanKind::step) == Lane::compute);
  CHECK(lane_of(SpanKind::waited) == Lane::compute);
  CHECK(lane_of(SpanKind::exchange) == Lane::communication);
  CHECK(lane_of(SpanKind::data) == Lane::data);
  CHECK(lane_of(SpanKind::save) == Lane::saves);
}

TEST_CASE("every three intervals of a short line") {
  std::vector<std::pair<int64_t, int64_t>> intervals;
  for (int64_t begin = 0; begin < 4; ++begin)
    for (int64_t end = begin; end < 5; ++end) intervals.emplace_back(begin, end);
  for (const Lane lane : {Lane::compute, Lane::communication})
    for (const auto& a : intervals)
      for (const auto& b : intervals)
        for (const auto& c : intervals) {
          std::vector<PlacedSpan> spans;
          for (const auto& [begin, end] : {a, b, c})
            spans.push_back(
                {.index = uint32_t(spans.size()), .lane = lane, .begin_ns = begin, .end_ns = end});
          assign_lanes(spans);
          check(spans);
        }
}

TEST_CASE("random spans of all kinds") {
  for (const uint64_t seed : test_seeds(50)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<PlacedSpan> spans;
    for (uint32_t i = 0; i < 120; ++i) {
      const int64_t begin = int64_t(random() % 200),
                    length = int64_t(random() % (random() % 4 == 0 ? 100 : 10));
      spans.push_back(
          {.index = i, .lane = Lane(random() % kLanes), .begin_ns = begin, .end_ns = begin + length});
    }
    std::vector<PlacedSpan> reversed(spans.rbegin(), spans.rend());
    assign_lanes(spans);
    check(spans);
    for (const Lane lane : {Lane::communication, Lane::data, Lane::saves}) {
      int lanes = 0;
      for (const PlacedSpan& span : spans)
        if (span.lane == lane && span.begin_ns < span.end_ns) lanes = std::max(lanes, span.overflow + 1);
      CHECK(lanes == most_at_once(spans, lane));
    }
    // The order in which they come does not matter.
    assign_lanes(reversed);
    for (size_t i = 0; i < spans.size(); ++i) {
      CHECK(spans[i].index == reversed[i].index);
      CHECK(spans[i].overflow == reversed[i].overflow);
    }
  }
}

TEST_CASE("of spans with equal times the one that ended later is the outer one") {
  std::vector<PlacedSpan> spans = {{.index = 0, .begin_ns = 5, .end_ns = 9},
                                   {.index = 1, .begin_ns = 5, .end_ns = 9}};
  assign_lanes(spans);
  CHECK(spans[0].index == 1);
  CHECK(spans[1].index == 0);
  CHECK(spans[1].overflow == 0);
}
