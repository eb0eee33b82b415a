// Goal: the text of the hook that stops a rank names a rank and a moment for each epoch, and what is no such
// text is refused. Method: texts by hand.
#include "runtime/run/wire/stop_at.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"

using namespace trainctl;

TEST_CASE("a rank stops itself where the text says so for its epoch", "[stop_at]") {
  const auto first = StopAt::parse("2:forward:3:tp group", 1);
  REQUIRE(first);
  CHECK((first->rank == 2 && first->phase == RunPhase::forward && first->step == 3 &&
         first->wait == "tp group"));
  CHECK_FALSE(StopAt::parse("2:forward:3:tp group", 2));
  CHECK_FALSE(StopAt::parse("", 1));
  const std::string several = "1:loading;;0:forward:7";
  CHECK(StopAt::parse(several, 1)->phase == RunPhase::loading);
  CHECK_FALSE(StopAt::parse(several, 2));
  CHECK(StopAt::parse(several, 3)->step == 7);
  CHECK_FALSE(StopAt::parse(several, 4));
  for (const char* wrong : {"x", "1", "1:nowhere", "1:forward:x"})
    CHECK_THROWS_AS(StopAt::parse(wrong, 1), Error);
}
