// Goal: an ExactSum is the sum of its values rounded once, in any order and any grouping, over the whole
// range of doubles.
// Method: random values whose large parts cancel, compared with Shewchuk's expansions, another exact method
// (the one of Python's math.fsum); known answers at the ends of the range; all orders of values that a
// running sum adds differently.
#include "parallel/exact_sum.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "test/support/seed.h"

using namespace trainctl;

namespace {

double exact_sum(const std::vector<double>& values) {
  ExactSum sum;
  for (const double v : values) sum.add(v);
  return sum.value();
}

/// The sum rounded once, by expansions: doubles that do not overlap, least first. No value or sum may
/// overflow. Source: J. R. Shewchuk, Adaptive Precision Floating-Point Arithmetic, 1997, theorem 10.
double sum_of_expansions(const std::vector<double>& values) {
  std::vector<double> parts;
  for (double x : values) {
    std::vector<double> next;
    for (double y : parts) {
      if (std::abs(x) < std::abs(y)) std::swap(x, y);
      const double high = x + y, low = y - (high - x);
      if (low != 0) next.push_back(low);
      x = high;
    }
    next.push_back(x);
    parts = next;
  }
  if (parts.empty()) return 0;
  size_t n = parts.size();
  double high = parts[--n], low = 0;
  while (n > 0 && low == 0) {
    const double x = high, y = parts[--n];
    high = x + y;
    low = y - (high - x);
  }
  // A tie that the parts below decide.
  if (n > 0 && ((low < 0 && parts[n - 1] < 0) || (low > 0 && parts[n - 1] > 0))) {
    const double twice = low * 2, rounded = high + twice;
    if (twice == rounded - high) high = rounded;
  }
  return high;
}

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

/// Values of many sizes; with each large one its negative, so that the sum depends on the small ones.
std::vector<double> hard_values(std::mt19937_64& random) {
  std::uniform_int_distribution<int> count(1, 60), exponent(-300, 300);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::vector<double> values;
  const int spread = std::uniform_int_distribution<int>(0, 300)(random);
  for (int i = count(random); i > 0; --i) {
    const double v = std::ldexp(mantissa(random), exponent(random) * spread / 300);
    values.push_back(v);
    if (random() % 2) values.push_back(-v);
    // Half a unit in the last place of the value before, and a trifle that decides the tie.
    if (random() % 4 == 0) values.push_back(std::ldexp(v, -53));
    if (random() % 4 == 0) values.push_back(std::copysign(std::ldexp(1, -1000), mantissa(random)));
  }
  std::shuffle(values.begin(), values.end(), random);
  return values;
}

constexpr double kMost = std::numeric_limits<double>::max(),
                 kLeast = std::numeric_limits<double>::denorm_min();

}  // namespace

TEST_CASE("an exact sum is rounded once, in any order and any grouping", "[exact_sum]") {
  int rounds_differently = 0;
  for (const uint64_t seed : trainctl::test::test_seeds(3000)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<double> values = hard_values(random);
    const double expected = sum_of_expansions(values);
    double running = 0;
    for (const double v : values) running += v;
    rounds_differently += running != expected;
    REQUIRE(same_bits(exact_sum(values), expected));

    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> groups(1 + random() % 7);
    for (const double v : values) groups[random() % groups.size()].add(v);
    ExactSum total;
    for (const ExactSum& group : groups) total.add(group);
    REQUIRE(same_bits(total.value(), expected));
    ExactSum in_one;
    for (const double v : values) in_one.add(v);
    REQUIRE(in_one == total);
  }
  CHECK((rounds_differently > 1000 || trainctl::test::given_seed()));
}

TEST_CASE("exact sums at the ends of the range of doubles", "[exact_sum]") {
  CHECK(same_bits(exact_sum({}), 0.0));
  CHECK(same_bits(exact_sum({-0.0}), 0.0));
  CHECK(same_bits(exact_sum({1e300, -1e300}), 0.0));
  CHECK(exact_sum({kMost, kMost, -kMost}) == kMost);
  CHECK(exact_sum({-kMost, -kMost, kMost}) == -kMost);
  CHECK(exact_sum({kMost, kMost}) == HUGE_VAL);
  CHECK(exact_sum({-kMost, -kMost}) == -HUGE_VAL);
  // Half a unit more than the largest double is the first sum that rounds to infinity.
  const double half_unit = std::ldexp(1, 970);
  CHECK(exact_sum({kMost, half_unit}) == HUGE_VAL);
  CHECK(exact_sum({kMost, half_unit, -kLeast}) == kMost);
  CHECK(exact_sum({kLeast, kLeast}) == 2 * kLeast);
  CHECK(exact_sum({kMost, -kLeast, -kMost}) == -kLeast);
  const double least_normal = std::numeric_limits<double>::min();
  CHECK(exact_sum({least_normal, -kLeast}) == std::nextafter(least_normal, 0));
  CHECK(exact_sum({1, std::ldexp(1, -53)}) == 1);
  CHECK(exact_sum({1, std::ldexp(1, -53), kLeast}) == std::nextafter(1, 2));
  CHECK(exact_sum({std::nextafter(1, 2), std::ldexp(1, -53)}) == 1 + std::ldexp(1, -51));
  CHECK(exact_sum({2, -std::ldexp(1, -53)}) == 2);
  CHECK(exact_sum({2, -std::ldexp(1, -53), -kLeast}) == std::nextafter(2, 1));
}

TEST_CASE("many equal values do not overflow an exact sum", "[exact_sum]") {
  ExactSum sum;
  for (int i = 0; i < 100; ++i) sum.add(kMost);
  for (int doubling = 0; doubling < 60; ++doubling) sum.add(ExactSum(sum));
  CHECK(sum.value() == HUGE_VAL);
  ExactSum opposite;
  for (int i = 0; i < 100; ++i) opposite.add(-kMost);
  for (int doubling = 0; doubling < 60; ++doubling) opposite.add(ExactSum(opposite));
  CHECK(opposite.value() == -HUGE_VAL);
  sum.add(opposite);
  CHECK(sum == ExactSum());
}

TEST_CASE("values that are not finite make the sum so", "[exact_sum]") {
  CHECK(exact_sum({1, HUGE_VAL, 2}) == HUGE_VAL);
  CHECK(exact_sum({1, -HUGE_VAL, kMost}) == -HUGE_VAL);
  CHECK(std::isnan(exact_sum({HUGE_VAL, -HUGE_VAL})));
  CHECK(std::isnan(exact_sum({NAN, 1})));
  ExactSum infinite, sum;
  infinite.add(HUGE_VAL);
  sum.add(1);
  sum.add(infinite);
  CHECK(sum.value() == HUGE_VAL);
}
