// V: sixteen f32 lanes on every instruction set, and the arithmetic of the kernels on them. Only the sources
// of this folder include it. They are compiled several times, so everything here has internal linkage;
// otherwise the linker would keep the copy of one instruction set for all.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {
namespace {

constexpr int64_t kLanes = 16;
typedef float V __attribute__((vector_size(64)));
typedef float VUnaligned __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t VInt __attribute__((vector_size(64)));
typedef uint32_t VWord __attribute__((vector_size(64)));
typedef uint16_t VHalf __attribute__((vector_size(32)));
typedef uint16_t VHalfUnaligned __attribute__((vector_size(32), aligned(2), may_alias));

#define TRAINCTL_INLINE inline __attribute__((always_inline))

TRAINCTL_INLINE V splat(float f) { return f - V{}; }
TRAINCTL_INLINE V as_float(VInt i) { return (V)i; }
TRAINCTL_INLINE VInt lane_indices() { return VInt{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

/// a * b + c, rounded once if the instruction set has FMA, otherwise twice.
TRAINCTL_INLINE V fma(V a, V b, V c) {
#if defined(__AVX512F__)
  return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  // Shuffles, which gcc resolves: a struct of two halves would go through the stack.
  const auto low = [](V v) { return (__m256)__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); };
  const auto high = [](V v) { return (__m256)__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15); };
  return (V)__builtin_shufflevector(_mm256_fmadd_ps(low(a), low(b), low(c)),
                                    _mm256_fmadd_ps(high(a), high(b), high(c)), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
                                    11, 12, 13, 14, 15);
#else
  return a * b + c;
#endif
}

TRAINCTL_INLINE V square_root(V a) {
#if defined(__AVX512F__)
  return (V)_mm512_maskz_sqrt_ps(0xffff, (__m512)a);
#else
  struct Quarters {
    __m128 part[4];
  };
  Quarters q = __builtin_bit_cast(Quarters, a);
  for (__m128& part : q.part) {
    part = _mm_sqrt_ps(part);
  }
  return __builtin_bit_cast(V, q);
#endif
}

/// The larger value per lane; ignores a NaN in `candidate`.
TRAINCTL_INLINE V larger(V best, V candidate) { return candidate > best ? candidate : best; }

/// Limits to [low, high]; NaN stays NaN.
TRAINCTL_INLINE V clamp(V x, float low, float high) {
  x = x < splat(low) ? splat(low) : x;
  return x > splat(high) ? splat(high) : x;
}

/// Sum over lanes in a fixed tree.
TRAINCTL_INLINE float lane_sum(V v) {
  float t[kLanes];
  std::memcpy(t, &v, sizeof t);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) {
      t[i] += t[i + step];
    }
  }
  return t[0];
}

TRAINCTL_INLINE float lane_max(V v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) {
    best = v[i] > best ? v[i] : best;
  }
  return best;
}

/// e^x to about 1 ulp; overflows to infinity, underflows to 0, NaN stays NaN. Coefficients: Cephes expf.
TRAINCTL_INLINE V exponential(V x) {
  x = clamp(x, -104.0f, 89.0f);
  const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const V shifted = fma(x, splat(1.44269504088896341f), magic);
  const V n = shifted - magic;
  V r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  V p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
#if defined(__AVX512F__)
  return (V)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);
#else
  // Two powers of two, since 2^n alone leaves the range of the exponent at both ends.
  const VInt exponent = (VInt)shifted - (VInt)magic;
  const VInt half = exponent >> 1;
  return p * as_float((half + 127) << 23) * as_float((exponent - half + 127) << 23);
#endif
}

// ---- memory: a full vector, or the first `count` lanes (the others read as 0)
// ------------------------------
struct Full {};
struct Tail {
  int count;
};

TRAINCTL_INLINE V widen(VHalf h) { return (V)(__builtin_convertvector(h, VWord) << 16); }

TRAINCTL_INLINE VHalf narrow(V v) {
  const VWord u = (VWord)v;
  const VWord rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const VWord quiet_nan = (u >> 16) | 0x40u;
  return __builtin_convertvector((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded, VHalf);
}

TRAINCTL_INLINE V load(const float* p, Full) { return *reinterpret_cast<const VUnaligned*>(p); }
TRAINCTL_INLINE V load(const bf16* p, Full) { return widen(*reinterpret_cast<const VHalfUnaligned*>(p)); }
TRAINCTL_INLINE void store(float* p, V v, Full) { *reinterpret_cast<VUnaligned*>(p) = v; }
TRAINCTL_INLINE void store(bf16* p, V v, Full) { *reinterpret_cast<VHalfUnaligned*>(p) = narrow(v); }

TRAINCTL_INLINE V load(const float* p, Tail tail) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, size_t(tail.count) * sizeof(float));
  return load(lanes, Full{});
}
TRAINCTL_INLINE V load(const bf16* p, Tail tail) {
  bf16 lanes[kLanes] = {};
  std::memcpy(static_cast<void*>(lanes), p, size_t(tail.count) * sizeof(bf16));
  return load(lanes, Full{});
}
TRAINCTL_INLINE void store(float* p, V v, Tail tail) { std::memcpy(p, &v, size_t(tail.count) * sizeof(float)); }
TRAINCTL_INLINE void store(bf16* p, V v, Tail tail) {
  const VHalf h = narrow(v);
  std::memcpy(static_cast<void*>(p), &h, size_t(tail.count) * sizeof(bf16));
}

/// Calls body(column, Full or Tail) for n columns.
template <typename Body>
TRAINCTL_INLINE void for_lanes(int64_t n, Body body) {
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    body(c, Full{});
  }
  if (c < n) {
    body(c, Tail{int(n - c)});
  }
}

/// Calls body(T{}) with T the C++ type of `dtype` (f32 or bf16).
template <typename Body>
TRAINCTL_INLINE void with_type(DType dtype, Body body) {
  if (dtype == DType::f32) {
    body(float{});
  } else {
    body(bf16{});
  }
}

template <typename T>
TRAINCTL_INLINE T* row(const Matrix& m, int64_t r) {
  return static_cast<T*>(m.data) + r * m.stride;
}

}  // namespace
}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
