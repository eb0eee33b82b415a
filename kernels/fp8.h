// The floating-point formats of 8 bits, and the power of two by which a group of values is brought into one.
// Pure.
//
//   e4m3   4 bits of exponent, 3 of mantissa: up to 448, normal from 2^-6, steps of 2^-9 below; no infinity,
//          NaN is 0x7f and 0xff
//   e5m2   5 and 2: up to 57344, normal from 2^-14, steps of 2^-16 below; infinity is 0x7c and 0xfc
//
// A value times a power of two is exact in bf16, and the product of two of them in f32. So a product of bf16
// matrices that hold such values is the product of the 8-bit ones, but for the order of its sums.
// Source: FP8 formats for deep learning, arXiv:2209.05433.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "runtime/base/words.h"

namespace trainctl::kernels {

enum class Fp8 : uint8_t { e4m3, e5m2 };
}  // namespace trainctl::kernels
template <>
struct trainctl::Words<trainctl::kernels::Fp8> {
  static constexpr std::string_view list[] = {"e4m3", "e5m2"};
};
namespace trainctl::kernels {

struct Fp8Format {
  int mantissa = 3;  ///< bits
  int least = -6;    ///< exponent of the smallest normal value
  int greatest = 8;  ///< of the largest one, which is 1.75 * 2^greatest in both formats
  float largest() const { return std::ldexp(1.75f, greatest); }
};
constexpr Fp8Format format_of(Fp8 format) {
  return format == Fp8::e4m3 ? Fp8Format{3, -6, 8} : Fp8Format{2, -14, 15};
}

/// To the nearest value, ties to the even one; what is larger than all becomes the largest.
inline uint8_t fp8_code(Fp8 format, float x) {
  const Fp8Format f = format_of(format);
  const int sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return uint8_t(sign | 0x7f);
  const float size = std::min(std::fabs(x), f.largest());
  const int exponent = size > 0 ? std::max(std::ilogb(size), f.least) : f.least;
  const int steps = int(std::nearbyint(std::ldexp(double(size), f.mantissa - exponent)));
  // Below 2^mantissa steps a value has no exponent; twice as many carry into it.
  return uint8_t(sign | (((exponent - f.least + 1) << f.mantissa) + steps - (1 << f.mantissa)));
}

inline float fp8_value(Fp8 format, uint8_t code) {
  const Fp8Format f = format_of(format);
  const int size = code & 0x7f, exponent = size >> f.mantissa, steps = size & ((1 << f.mantissa) - 1);
  float value = exponent == 0
                    ? std::ldexp(float(steps), f.least - f.mantissa)
                    : std::ldexp(float(steps + (1 << f.mantissa)), f.least - 1 + exponent - f.mantissa);
  if (format == Fp8::e4m3 ? size == 0x7f : size > 0x7c) value = std::numeric_limits<float>::quiet_NaN();
  if (format == Fp8::e5m2 && size == 0x7c) value = std::numeric_limits<float>::infinity();
  return code & 0x80 ? -value : value;
}

/// So many values of a row, column or edge of a block have one scale, where nothing else is said.
inline constexpr int64_t kFp8Group = 128;
constexpr int64_t fp8_groups(int64_t n, int64_t group) { return (n + group - 1) / group; }

/// The scale's exponent: the least e with which 2^e times the largest value of the format is no less than
/// `largest`, the largest of a group. Not below kLeastScale, so that the smallest step is a normal number.
/// It is one of E8M0, the scales of the OCP Microscaling formats, which go from -127 to 127. Those take the
/// exponent of `largest` alone, so that values up to an eighth above the format's largest become that: here
/// the scale is twice as large where that would be, as NVIDIA rounds it (arXiv:2506.08027).
inline constexpr int kLeastScale = -100;
inline int fp8_scale(Fp8 format, float largest) {
  const auto bits = std::bit_cast<uint32_t>(largest);
  const int exponent = int(bits >> 23) - 127 + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  return std::max(exponent - format_of(format).greatest, kLeastScale);
}

}  // namespace trainctl::kernels
