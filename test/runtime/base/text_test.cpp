// Goal: one of a thing is never "1 things".
// Method: none, one and more, with and without a plural of its own.
#include "runtime/base/text.h"

#include <catch2/catch.hpp>

using namespace trainctl;

TEST_CASE("one rank, two ranks", "[text]") {
  CHECK(count_of(0, "rank") == "0 ranks");
  CHECK(count_of(1, "rank") == "1 rank");
  CHECK(count_of(2, "rank") == "2 ranks");
  CHECK(count_of(1, "entry", "entries") == "1 entry");
  CHECK(count_of(3, "entry", "entries") == "3 entries");
}

