// Goal: f16 is IEEE binary16. Method: every one of its numbers against the definition in doubles; rounding of
// every number half way between two of them and of its neighbours in f32, to nearest and ties to even.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/dtype.h"

using namespace trainctl;

namespace {

f16 of_bits(int bits) {
  f16 number;
  number.bits = uint16_t(bits);
  return number;
}

/// The definition, of exponents below 31.
double value_of(int bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

constexpr int kInfinity = 0x7c00;

}  // namespace

TEST_CASE("every f16 is what IEEE 754 says, and comes back from f32") {
  int wrong = 0, wrong_back = 0;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const float wide = float(of_bits(bits));
    if ((bits & 0x7fff) > kInfinity) {
      wrong += !std::isnan(wide);
      wrong_back += f16(wide).bits != (bits | 0x200);
      continue;
    }
    const float expected = (bits & 0x7fff) == kInfinity
                               ? std::copysign(INFINITY, bits & 0x8000 ? -1.0f : 1.0f)
                               : float(value_of(bits));
    wrong += !same(wide, expected);
    wrong_back += f16(wide).bits != bits;
  }
  CHECK(wrong == 0);
  CHECK(wrong_back == 0);
}

TEST_CASE("f16 rounds to nearest, ties to even, and to infinity from 65520") {
  int wrong = 0;
  for (const float sign : {1.0f, -1.0f})
    for (int bits = 0; bits < kInfinity; ++bits) {
      const int low = bits | (sign < 0 ? 0x8000 : 0), high = low + 1;
      const double next = bits + 1 == kInfinity ? 65536.0 : std::abs(value_of(bits + 1));
      const float middle = sign * float((std::abs(value_of(bits)) + next) / 2);
      wrong += f16(middle).bits != (low % 2 == 0 ? low : high);
      wrong += f16(std::nextafter(middle, 0.0f)).bits != low;
      wrong += f16(std::nextafter(middle, sign * INFINITY)).bits != high;
    }
  CHECK(wrong == 0);
  CHECK(f16(0x1p-26f).bits == 0);
  CHECK(f16(-1e-40f).bits == 0x8000);
  CHECK(f16(3e38f).bits == kInfinity);
  CHECK(std::isnan(float(f16(NAN))));
  CHECK(std::isnan(float(f16(std::bit_cast<float>(0x7f800001u)))));
}
