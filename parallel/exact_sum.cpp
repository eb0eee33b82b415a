#include "parallel/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace trainctl {
namespace {

constexpr int kLeastExponent = -1074;  // of the least double
constexpr int kMantissaBits = 53;

struct Parts {
  uint64_t mantissa = 0;  // value = mantissa * 2^(shift + kLeastExponent)
  int shift = 0;
};

/// Of a finite double without its sign.
Parts parts_of(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const int exponent = int(bits >> 52 & 0x7ff);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  if (exponent == 0) return {fraction, 0};
  return {fraction | uint64_t{1} << 52, exponent - 1};
}

}  // namespace

void ExactSum::add(double value) {
  if (std::isnan(value)) specials_ |= nan;
  if (std::isinf(value)) specials_ |= value > 0 ? plus_infinity : minus_infinity;
  if (!std::isfinite(value)) return;
  const auto [mantissa, shift] = parts_of(value);
  unsigned __int128 rest = static_cast<unsigned __int128>(mantissa) << (shift % 32);
  const bool negative = std::signbit(value);
  // The carry is 0 or 1, the borrow 0 or -1; both go on until they are used up.
  int64_t carry = 0;
  for (size_t i = size_t(shift / 32); i < kLimbs && (rest != 0 || carry != 0); ++i, rest >>= 32) {
    const int64_t part = int64_t(uint32_t(rest));
    const int64_t sum = int64_t(limbs_[i]) + (negative ? -part : part) + carry;
    limbs_[i] = uint32_t(sum);
    carry = sum >> 32;
  }
}

void ExactSum::add(const ExactSum& other) {
  uint64_t carry = 0;
  for (size_t i = 0; i < kLimbs; ++i) {
    const uint64_t sum = uint64_t(limbs_[i]) + other.limbs_[i] + carry;
    limbs_[i] = uint32_t(sum);
    carry = sum >> 32;
  }
  specials_ |= other.specials_;
}

double ExactSum::value() const {
  if (specials_ & nan || (specials_ & plus_infinity && specials_ & minus_infinity))
    return std::numeric_limits<double>::quiet_NaN();
  if (specials_) return specials_ & plus_infinity ? HUGE_VAL : -HUGE_VAL;

  const bool negative = limbs_.back() >> 31;
  std::array<uint32_t, kLimbs> magnitude = limbs_;
  if (negative) {
    uint64_t carry = 1;
    for (uint32_t& limb : magnitude) {
      carry += uint32_t(~limb);
      limb = uint32_t(carry);
      carry >>= 32;
    }
  }
  size_t top_limb = kLimbs;
  while (top_limb > 0 && magnitude[top_limb - 1] == 0) --top_limb;
  if (top_limb == 0) return 0;
  const auto bit = [&](int at) { return magnitude[size_t(at / 32)] >> (at % 32) & 1; };
  const int top = int(top_limb) * 32 - 1 - std::countl_zero(magnitude[top_limb - 1]);
  const int lowest = std::max(0, top - (kMantissaBits - 1));  // of the bits that a double keeps
  uint64_t mantissa = 0;
  for (int at = top; at >= lowest; --at) mantissa = mantissa << 1 | bit(at);
  if (lowest > 0 && bit(lowest - 1)) {
    bool more_than_half = false;
    for (int at = lowest - 2; at >= 0 && !more_than_half; --at) more_than_half = bit(at);
    mantissa += more_than_half || (mantissa & 1);
  }
  const double sum = std::ldexp(double(mantissa), lowest + kLeastExponent);
  return negative ? -sum : sum;
}

}  // namespace trainctl
