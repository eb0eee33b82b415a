// Goal: counts, sizes and durations read the same everywhere, and one of a thing is never "1 things".
// Method: the words for chosen numbers, at each change of unit.
#include "runtime/base/text.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace trainctl;

TEST_CASE("one rank, two ranks", "[text]") {
  CHECK(count_of(0, "rank") == "0 ranks");
  CHECK(count_of(1, "rank") == "1 rank");
  CHECK(count_of(2, "rank") == "2 ranks");
  CHECK(count_of(1, "entry", "entries") == "1 entry");
  CHECK(count_of(3, "entry", "entries") == "3 entries");
}

TEST_CASE("sizes and numbers at each change of unit", "[text]") {
  CHECK(size_text(999) == "999 B");
  CHECK(size_text(1000) == "1.00 kB");
  CHECK(size_text(112'400'000'000) == "112.4 GB");
  CHECK(memory_text(512) == "0.5 KiB");
  CHECK(memory_text(1024.0 * 1024 * 82.5) == "82.5 MiB");
  CHECK(memory_text(std::ldexp(1.5, 30)) == "1.50 GiB");
  CHECK(memory_text(std::ldexp(4535.77, 30)) == "4.43 TiB");
  CHECK(short_number(412) == "412");
  CHECK(short_number(8100) == "8.1 k");
  CHECK(short_number(1.234e6) == "1.23 M");
  CHECK(short_number(NAN) == "-");
}

TEST_CASE("durations in their two largest units", "[text]") {
  CHECK(short_duration(7.6) == "8s");
  CHECK(short_duration(252) == "4m 12s");
  CHECK(short_duration(3 * 3600 + 5 * 60) == "3h 5m");
  CHECK(short_duration(2 * 86400 + 6 * 3600) == "2d 6h");
  CHECK(short_duration(-1) == "-");
  CHECK(short_duration(INFINITY) == "-");
}
