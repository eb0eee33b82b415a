// Goal: the offset of a node's clock is never farther from the truth than the stated error, whatever the
// delays; aligned times keep their order; between two moments a clock that is fast or slow by a constant rate
// is followed.
// Method: a clock with a random offset and rate, questions with random and lopsided delays (seeded), and the
// truth that the test knows; answers by hand.
#include <catch2/catch.hpp>
#include <random>

#include "runtime/spans/clock_alignment.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// The node's clock as a function of the supervisor's.
struct NodeClock {
  double offset_s, rate;  ///< rate: seconds gained in a second
  double at(double own_s) const { return own_s + offset_s + rate * own_s; }
};

/// Questions from `own_s` on, one behind the other.
std::vector<ClockSample> ask(const NodeClock& clock, double own_s, int count, std::mt19937_64& random) {
  std::exponential_distribution<double> delay_s(1 / 200e-6);
  std::vector<ClockSample> samples;
  for (int i = 0; i < count; ++i) {
    // One way may be much slower than the other.
    const double there_s = 10e-6 + delay_s(random),
                 back_s = 10e-6 + delay_s(random) * (random() % 5 == 0 ? 20 : 1);
    samples.push_back({own_s, clock.at(own_s + there_s), own_s + there_s + back_s});
    own_s += there_s + back_s;
  }
  return samples;
}

}  // namespace

TEST_CASE("the offset is that of the shortest round trip") {
  CHECK_FALSE(offset_of({}));
  const ClockSample samples[] = {{10, 110.5, 12}, {20, 121, 21}, {30, 133, 34}};
  const auto offset = offset_of(samples);
  REQUIRE(offset);
  CHECK(offset->at_s == 20.5);
  CHECK(offset->offset_s == 100.5);
  CHECK(offset->error_s == 0.5);
}

TEST_CASE("aligned times are within the stated error, whatever the delays") {
  for (const uint64_t seed : test_seeds(300)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> offset_s(-1e6, 1e6), rate(-100e-6, 100e-6), window_s(0.01, 300);
    const NodeClock clock{offset_s(random), rate(random)};
    const double begin_s = 1000 + 1e5 * std::generate_canonical<double, 53>(random),
                 end_s = begin_s + window_s(random);
    const auto before = offset_of(ask(clock, begin_s, 16, random)),
               after = offset_of(ask(clock, end_s, 16, random));
    REQUIRE((before && after));
    const ClockAlignment both(*before, *after), one(*before);
    // The clock gains some nanoseconds within a round trip.
    const double slack_s = tolerance::kClockRounding;
    CHECK(std::abs(before->offset_s - (clock.at(before->at_s) - before->at_s)) <= before->error_s + slack_s);
    double last_s = -1;
    for (int i = 0; i <= 100; ++i) {
      const double true_s = before->at_s + (after->at_s - before->at_s) * i / 100;
      const double aligned_s = both.own_s(clock.at(true_s));
      CHECK(std::abs(aligned_s - true_s) <= both.error_s() + slack_s);
      CHECK(aligned_s >= last_s);
      last_s = aligned_s;
    }
    // At one moment only: its rate is not known, and the error grows with the distance.
    CHECK(std::abs(one.own_s(clock.at(before->at_s)) - before->at_s) <= one.error_s() + slack_s);
  }
}

TEST_CASE("without an offset the clocks are one, and outside the two moments the offset stays") {
  CHECK(ClockAlignment().own_s(12.5) == 12.5);
  CHECK(ClockAlignment().error_s() == 0);
  const ClockAlignment alignment(ClockOffset{100, 5, 0.1}, ClockOffset{200, 7, 0.2});
  CHECK(alignment.error_s() == 0.2);
  CHECK(alignment.own_s(55) == 50);
  CHECK(alignment.own_s(105) == 100);
  CHECK(alignment.own_s(156) == 150);
  CHECK(alignment.own_s(207) == 200);
  CHECK(alignment.own_s(307) == 300);
}
