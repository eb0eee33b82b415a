// Goal: sizes, counts and durations read the same everywhere, and a quantity with a unit is read as it is
// written. Method: the words for chosen numbers, at each change of unit; quantities with each unit, and texts
// that are none.
#include "runtime/base/units.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace trainctl;

TEST_CASE("sizes and numbers at each change of unit", "[units]") {
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

TEST_CASE("a number that rounds to a thousand is one of the next unit", "[units]") {
  CHECK(short_number(999.4) == "999");
  CHECK(short_number(999.6) == "1 k");
  CHECK(short_number(999'499) == "999 k");
  CHECK(short_number(999'999) == "1 M");
  CHECK(short_number(999.7e9) == "1 T");
  for (const double scale : {1.0, 1e3, 1e6, 1e9})
    for (int n = 99'000; n <= 100'100; ++n) {
      CAPTURE(scale, n);
      CHECK(short_number(scale * n / 100).find('e') == std::string::npos);
    }
}

TEST_CASE("durations in their two largest units", "[units]") {
  CHECK(short_duration(7.6) == "8s");
  CHECK(short_duration(252) == "4m 12s");
  CHECK(short_duration(3 * 3600 + 5 * 60) == "3h 5m");
  CHECK(short_duration(2 * 86400 + 6 * 3600) == "2d 6h");
  CHECK(short_duration(-1) == "-");
  CHECK(short_duration(INFINITY) == "-");
}

TEST_CASE("estimates and counts in one unit", "[units]") {
  CHECK(duration_text(0.25) == "0.25 s");
  CHECK(duration_text(119) == "119 s");
  CHECK(duration_text(120) == "2 min");
  CHECK(duration_text(2 * kHourS) == "2.0 h");
  CHECK(duration_text(2 * kDayS) == "2.0 days");
  CHECK(duration_text(730 * kDayS) == "2 years");
  CHECK(count_text(999) == "999");
  CHECK(count_text(1000) == "1.0 k");
  CHECK(count_text(1.5e6) == "1.50 M");
  CHECK(count_text(405e9) == "405.00 B");
  CHECK(count_text(15e12) == "15.00 T");
  CHECK(count_text(2e15) == "2.00 P");
  CHECK(flop_text(6e9) == "6.00 GFLOP");
  CHECK(flop_text(3.21e18) == "3.21e18 FLOP");
  CHECK(brief_memory_text(310ull << 20) == "310 MiB");
  CHECK(brief_memory_text((1ull << 30) - 1) == "1024 MiB");
  CHECK(brief_memory_text(uint64_t(1.25 * kGibibyte)) == "1.2 GiB");
}

TEST_CASE("times of day are those of Greenwich", "[units]") {
  CHECK(utc_text(0) == "1970-01-01T00:00:00Z");
  CHECK(utc_text(1700000000.9) == "2023-11-14T22:13:20Z");
}

TEST_CASE("quantities with a unit", "[units]") {
  CHECK(bytes_of("80GiB") == 80ull << 30);
  CHECK(bytes_of("40 GB") == 40'000'000'000ull);
  CHECK(bytes_of("1.5  KiB") == 1536u);
  CHECK(bytes_of("2TB") == 2'000'000'000'000ull);
  for (const char* text : {"", "GiB", "80", "80 gib", "0GiB", "-1GiB", "nanGiB", "infGiB", "80GiB ",
                           "2000000TiB", "x80GiB", "+80GiB", " 80GiB", "0x80GiB", "1.2.3GiB", ".GiB"}) {
    INFO(text);
    CHECK_FALSE(bytes_of(text).has_value());
  }
  CHECK(seconds_of_unit("ms") == 0.001);
  CHECK(seconds_of_unit("m") == seconds_of_unit("min"));
  CHECK(seconds_of_unit("d") == 86400);
  CHECK_FALSE(seconds_of_unit("w").has_value());
  CHECK_FALSE(bytes_of_unit("").has_value());
}
