// Goal: a number that a person typed is read as it is written, or not at all.
// Method: texts at the ends of the ranges, and those that C's readers take for other numbers.
#include "runtime/base/digits.h"

#include <catch2/catch.hpp>

using namespace trainctl;

TEST_CASE("a whole number is digits in base ten", "[digits]") {
  CHECK(whole_number("0") == 0u);
  CHECK(whole_number("010") == 10u);  // not eight
  CHECK(whole_number("9223372036854775807") == 9223372036854775807u);
  CHECK_FALSE(whole_number("9223372036854775808"));
  CHECK(whole_number("18446744073709551615", UINT64_MAX) == UINT64_MAX);
  CHECK_FALSE(whole_number("18446744073709551616", UINT64_MAX));
  CHECK(whole_number("8", 8) == 8u);
  CHECK_FALSE(whole_number("9", 8));
  for (const char* text :
       {"", " ", "+2", "-2", " 2", "2 ", "\t2", "2\n", "0x10", "1e3", "2.0", "1_000", "1,000", "two", "2x"}) {
    INFO('"' << text << '"');
    CHECK_FALSE(whole_number(text));
  }
}

TEST_CASE("a decimal number is digits, a point and an exponent", "[digits]") {
  CHECK(decimal_number("2") == 2.0);
  CHECK(decimal_number("-0.5") == -0.5);
  CHECK(decimal_number("1e-3") == 1e-3);
  for (const char* text : {"", " ", "+2", " 2", "2 ", "0x10", "nan", "inf", "1e999", "1,5", "2x", "--2"}) {
    INFO('"' << text << '"');
    CHECK_FALSE(decimal_number(text));
  }
}
