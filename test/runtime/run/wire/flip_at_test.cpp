// Goal: the text of the hook that lets a rank compute wrongly names a rank, a moment and what is flipped for
// each epoch, and what is no such text is refused. Method: texts by hand.
#include "runtime/run/wire/flip_at.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"

using namespace trainctl;

TEST_CASE("a rank computes wrongly where the text says so for its epoch", "[flip_at]") {
  const auto once = FlipAt::parse("2:evaluating:4:product", 1);
  REQUIRE(once);
  CHECK((once->rank == 2 && once->what == FlipWhat::product));
  CHECK(once->matches({.phase = RunPhase::evaluating, .step = 4}));
  CHECK(once->matches({.phase = RunPhase::evaluating, .step = 5}));
  CHECK_FALSE(once->matches({.phase = RunPhase::evaluating, .step = 3}));
  CHECK_FALSE(once->matches({.phase = RunPhase::forward, .step = 4}));
  CHECK_FALSE(FlipAt::parse("2:evaluating:4:product", 2));
  CHECK_FALSE(FlipAt::parse("", 1));
  const auto each = FlipAt::parse("1::5:products;0:::moment", 1);
  CHECK(each->matches({.phase = RunPhase::backward, .step = 5}));
  CHECK_FALSE(each->matches({.phase = RunPhase::backward, .step = 4}));
  CHECK(FlipAt::parse("1::5:products;0:::moment", 2)->what == FlipWhat::moment);
  for (const char* wrong :
       {"x", "1", "1:::", "1:forward:3", "1:nowhere:3:product", "1::x:product", "1:::all"})
    CHECK_THROWS_AS(FlipAt::parse(wrong, 1), Error);
}
