// Goal: the hook that gives the times of a rank's steps replaces those that say who is slow, and no others;
// what is no such text is refused. Method: texts by hand.
#include "runtime/run/wire/times_at.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"

using namespace trainctl;

TEST_CASE("a rank reports the times that the text gives", "[times_at]") {
  CHECK_FALSE(TimesAt::parse(""));
  const auto given = TimesAt::parse("1.5:0.25");
  REQUIRE(given);
  const RankTimes times = given->of({.forward_s = 7,
                                     .backward_s = 7,
                                     .communication_s = 7,
                                     .optimizer_s = 7,
                                     .data_s = 7,
                                     .reporting_s = 7,
                                     .step_s = 7,
                                     .checkpoint_s = 3,
                                     .peak_bytes = 5,
                                     .pipeline_s = 7});
  CHECK(times.compute_s() == 1.5);
  CHECK(times.communication_s == 0.25);
  CHECK(times.step_s == 1.75);
  CHECK(times.pipeline_s == 0);
  CHECK(times.checkpoint_s == 3);
  CHECK(times.peak_bytes == 5);
  for (const char* wrong : {"x", "1", "1:", ":1", "1:2:3", "1:x", "0:1", "1:-1", "nan:1", "inf:1", "1:2 "})
    CHECK_THROWS_AS(TimesAt::parse(wrong), Error);
}
