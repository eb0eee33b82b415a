// NVFP4: floating-point numbers of 4 bits, with a scale for each few of them and one for the whole operand;
// how gradients are rounded to them at random, and how 16 values are mixed first. Pure.
//
//   value   E2M1: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, codes 0 to 7, with a sign; no infinity, no NaN
//   scale   E4M3 (fp8.h), of 16 neighbours of a row or column, or of 16 x 16 of a weight
//   and     a power of two of the whole operand
//
// What a product sees of x is value * scale * power of two: exact in bf16, and the product of two of them
// in f32. NVFP4 has any f32 in place of the power of two. One that is so brings the largest scale to (224,
// 448] instead of 448, of 2^17 between the least and the largest one, and so takes at most one bit of that
// range. Except for scales below 2^-6, the numbers then do not depend on which part of an operand a rank
// has.
//
// Source: Pretraining large language models with NVFP4, arXiv:2509.25149.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/fp8.h"
#include "kernels/weight_rounding.h"

namespace trainctl::kernels {

inline constexpr int64_t kFp4Group = 16;
inline constexpr float kFp4Values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
inline constexpr float kFp4Largest = 6;

/// To the nearest value, ties to the even code; what is larger than all becomes the largest. Of no NaN.
inline uint8_t fp4_code(float x) {
  const float size = std::fabs(x);
  int code = 0;
  for (int next = 1; next < 8; ++next) {
    const float middle = (kFp4Values[next - 1] + kFp4Values[next]) / 2;
    if (size > middle || (size == middle && next % 2 == 0)) code = next;
  }
  return uint8_t((std::signbit(x) ? 8 : 0) | code);
}
constexpr float fp4_value(uint8_t code) { return code & 8 ? -kFp4Values[code & 7] : kFp4Values[code & 7]; }

/// To one of the two neighbours of x, so that the mean is x: to the larger one (in size) of a share of all
/// `noise`. Of |x| up to 6, of which 23 bits behind the point count. A value stays as it is.
constexpr uint32_t fp4_drawn_code(float x, uint32_t noise) {
  const float size = x < 0 ? -x : x;
  const int cut = size < 2 ? 22 : size < 4 ? 23 : 24;  // of steps of 0.5, 1 and 2
  const uint32_t steps = (uint32_t(size * 0x1p23f) + (noise >> (32 - cut))) >> cut;
  return steps + (cut == 22 ? 0 : cut == 23 ? 2 : 4);
}

/// The exponent of an operand's power of two, with which the scale of its largest value fits into E4M3.
inline int fp4_scale(float largest) {
  const auto bits = std::bit_cast<uint32_t>(largest);  // 448 * 6 = 1.3125 * 2^11
  return std::max(int(bits >> 23) - 127 + ((bits & 0x7fffffu) > 0x280000u ? 1 : 0) - 11, kLeastScale);
}

/// Which random numbers an operand is rounded with: none, so to the nearest, or those of `tensor` (a
/// product of a run, a step and a micro-batch) and of `place`, which rows of that. The bits depend on
/// nothing else.
struct Fp4Noise {
  bool exists = false;
  uint64_t tensor = 0;
  uint32_t place = 0;
  /// Element (r, c) of the rows of expert `expert`, or of all where there are no experts, of so many
  /// columns, has the number r * columns + c: weight_noise of it.
  constexpr RoundingKey key(uint32_t expert) const {
    return rounding_key(tensor, place, uint64_t(expert) << 32);
  }
};

/// Multiplies 16 values by a Hadamard matrix whose rows have length 1, behind a diagonal of signs (bit i:
/// that of value i): of two operands mixed alike along a product's sum, the product is the same, and a
/// value much larger than others is shared out. A butterfly in f32, in this order of sums.
template <typename V>
inline void fp4_mix(V (&x)[kFp4Group], uint32_t signs) {
  for (int i = 0; i < kFp4Group; ++i)
    if (signs >> i & 1) x[i] = -x[i];
  for (int width = 1; width < kFp4Group; width *= 2)
    for (int i = 0; i < kFp4Group; i += 2 * width)
      for (int j = i; j < i + width; ++j) {
        const V a = x[j], b = x[j + width];
        x[j] = a + b, x[j + width] = a - b;
      }
  for (V& value : x) value = value * 0.25f;
}

}  // namespace trainctl::kernels
