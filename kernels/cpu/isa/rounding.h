// Rounding to formats of few bits, to the nearest value or at random (kernels/fp8.h,
// kernels/weight_rounding.h).
#pragma once
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {
namespace {

/// Without the sign, also of a zero; NaN stays NaN.
TRAINCTL_INLINE V size_of_each(V x) {
  return each_register([&](int i) { return (Register)((WordRegister)x.part[i] & 0x7fffffffu); });
}
constexpr float kInfinity = __builtin_inff();

/// The larger of `largest` and the finite sizes of x.
TRAINCTL_INLINE V larger_of(V largest, V x) {
  const V size = size_of_each(x);
  return maximum(largest, select(size < splat(kInfinity), size, V{}));
}

/// A value of at most the largest one, rounded. What is not finite becomes NaN.
struct Rounding {
  const int cut;       ///< bits of a mantissa that go
  const float normal;  ///< the smallest that has an exponent of its own
  const float shift;   ///< added to a smaller one and taken away again, it leaves whole steps
  TRAINCTL_INLINE explicit Rounding(const Fp8Format& f)
      : cut(23 - f.mantissa), normal(power(f.least)), shift(1.5f * power(f.least + cut)) {}

  TRAINCTL_INLINE static float power(int exponent) {
    const uint32_t bits = uint32_t(exponent + 127) << 23;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  TRAINCTL_INLINE V of(V x) const {
    const V size = size_of_each(x), below = (size + shift) - shift;
    const V above = each_register([&](int i) {
      const WordRegister u = (WordRegister)size.part[i];
      return (Register)((u + ((1u << (cut - 1)) - 1) + ((u >> cut) & 1u)) >> cut << cut);
    });
    const V rounded = select(size < splat(normal), below, above);
    const V with_sign = each_register([&](int i) {
      return (Register)((WordRegister)rounded.part[i] | ((WordRegister)x.part[i] & 0x80000000u));
    });
    return select(size < splat(kInfinity), with_sign, splat(__builtin_nanf("")));
  }
};

/// first, first + 1, ...
TRAINCTL_INLINE WordRegister counted_from(uint32_t first) {
  WordRegister lane;
  for (int i = 0; i < kRegisterLanes; ++i) lane[i] = uint32_t(i);
  return lane + first;
}

/// weight_noise of the indices from `index` on.
TRAINCTL_INLINE WordRegister weight_noises(const RoundingKey& key, uint32_t index) {
  WordRegister h = counted_from(index) * 0x9e3779b9u + key.low;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  h = (h ^ (h >> 16) ^ key.high) * 0x2c1b3c6du;
  return h ^ (h >> 15);
}

}  // namespace
}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
