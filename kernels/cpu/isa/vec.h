// V: sixteen f32 lanes on every instruction set, and the arithmetic of the kernels on them. Only the sources
// of this folder include it. They are compiled several times, so everything here has internal linkage;
// otherwise the linker would keep the copy of one instruction set for all.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {
namespace {

#define TRAINCTL_INLINE inline __attribute__((always_inline))

constexpr int64_t kLanes = 16;
#if defined(__AVX512F__)
constexpr int kRegisters = 1;
#elif defined(__AVX__)
constexpr int kRegisters = 2;
#else
constexpr int kRegisters = 4;
#endif
constexpr int kRegisterBytes = 64 / kRegisters;
constexpr int kRegisterLanes = int(kLanes) / kRegisters;

typedef float Register __attribute__((vector_size(kRegisterBytes)));
typedef float RegisterUnaligned __attribute__((vector_size(kRegisterBytes), aligned(4), may_alias));
typedef int32_t IntRegister __attribute__((vector_size(kRegisterBytes)));
typedef uint32_t WordRegister __attribute__((vector_size(kRegisterBytes)));
constexpr int kHalfBytes = kRegisterBytes / 2;
typedef uint16_t HalfRegister __attribute__((vector_size(kHalfBytes)));
typedef uint16_t HalfRegisterUnaligned __attribute__((vector_size(kHalfBytes), aligned(2), may_alias));

/// Sixteen lanes in as many registers as they need. Not one vector of 64 bytes: where registers are smaller,
/// gcc 12 puts such a vector on the stack after every operation, and an exponential took four times as long.
template <typename R>
struct Lanes {
  R part[kRegisters];
};
using V = Lanes<Register>;
using VInt = Lanes<IntRegister>;

/// {of(0), of(1), ...}: written out, because gcc keeps an array in registers only if no loop indexes it.
template <typename Of>
TRAINCTL_INLINE auto each_register(Of of) {
  using R = decltype(of(0));
  if constexpr (kRegisters == 1) {
    return Lanes<R>{{of(0)}};
  } else if constexpr (kRegisters == 2) {
    return Lanes<R>{{of(0), of(1)}};
  } else {
    return Lanes<R>{{of(0), of(1), of(2), of(3)}};
  }
}

template <typename R>
TRAINCTL_INLINE Lanes<R> operator+(Lanes<R> a, Lanes<R> b) {
  return each_register([&](int i) { return a.part[i] + b.part[i]; });
}
template <typename R>
TRAINCTL_INLINE Lanes<R> operator-(Lanes<R> a, Lanes<R> b) {
  return each_register([&](int i) { return a.part[i] - b.part[i]; });
}
TRAINCTL_INLINE V operator*(V a, V b) {
  return each_register([&](int i) { return a.part[i] * b.part[i]; });
}
TRAINCTL_INLINE V operator/(V a, V b) {
  return each_register([&](int i) { return a.part[i] / b.part[i]; });
}
TRAINCTL_INLINE V operator-(V a) {
  return each_register([&](int i) { return -a.part[i]; });
}
TRAINCTL_INLINE V& operator+=(V& a, V b) { return a = a + b; }

TRAINCTL_INLINE V splat(float f) {
  return each_register([&](int) { return f - Register{}; });
}
TRAINCTL_INLINE V operator+(V a, float b) { return a + splat(b); }
TRAINCTL_INLINE V operator-(V a, float b) { return a - splat(b); }
TRAINCTL_INLINE V operator*(V a, float b) { return a * splat(b); }
TRAINCTL_INLINE V operator/(V a, float b) { return a / splat(b); }

TRAINCTL_INLINE VInt bits_of(V v) {
  return each_register([&](int i) { return (IntRegister)v.part[i]; });
}
/// 2^i for i in [-127, 128]; 2^-127 is 0 and 2^128 is infinity.
TRAINCTL_INLINE V power_of_two(VInt i) {
  return each_register([&](int part) { return (Register)((i.part[part] + 127) << 23); });
}

TRAINCTL_INLINE VInt load(const int32_t* p) {
  return each_register([&](int i) {
    IntRegister part;
    std::memcpy(&part, p + i * kRegisterLanes, sizeof part);
    return part;
  });
}

// Masks: all bits of a lane are set where the comparison holds.
TRAINCTL_INLINE VInt operator>(V a, V b) {
  return each_register([&](int i) { return a.part[i] > b.part[i]; });
}
TRAINCTL_INLINE VInt operator<(V a, V b) { return b > a; }
TRAINCTL_INLINE VInt operator>(VInt a, int32_t b) {
  return each_register([&](int i) { return a.part[i] > b; });
}
TRAINCTL_INLINE V select(VInt mask, V where_set, V elsewhere) {
  return each_register([&](int i) { return mask.part[i] ? where_set.part[i] : elsewhere.part[i]; });
}
/// The lanes below `count`, which may be negative or more than there are.
TRAINCTL_INLINE VInt first_lanes(int32_t count) {
  return each_register([&](int part) {
    IntRegister lane;
    for (int i = 0; i < kRegisterLanes; ++i) {
      lane[i] = part * kRegisterLanes + i;
    }
    return lane < count;
  });
}

/// a * b + c, rounded once if the instruction set has FMA, otherwise twice.
TRAINCTL_INLINE Register fma(Register a, Register b, Register c) {
#if defined(__AVX512F__)
  return (Register)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Register)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
TRAINCTL_INLINE V fma(V a, V b, V c) {
  return each_register([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}

TRAINCTL_INLINE Register square_root(Register a) {
#if defined(__AVX512F__)
  return (Register)_mm512_maskz_sqrt_ps(0xffff, (__m512)a);
#elif defined(__AVX__)
  return (Register)_mm256_sqrt_ps((__m256)a);
#else
  return (Register)_mm_sqrt_ps((__m128)a);
#endif
}
TRAINCTL_INLINE V square_root(V a) {
  return each_register([&](int i) { return square_root(a.part[i]); });
}

/// a > b ? a : b, hence b where either is NaN.
TRAINCTL_INLINE V maximum(V a, V b) {
  return each_register([&](int i) {
#if defined(__AVX512F__)
    return (Register)_mm512_maskz_max_ps(0xffff, (__m512)a.part[i], (__m512)b.part[i]);
#elif defined(__AVX__)
    return (Register)_mm256_max_ps((__m256)a.part[i], (__m256)b.part[i]);
#else
    return (Register)_mm_max_ps((__m128)a.part[i], (__m128)b.part[i]);
#endif
  });
}

/// The larger value per lane; ignores a NaN in `candidate`.
TRAINCTL_INLINE V larger(V best, V candidate) { return maximum(candidate, best); }

/// Limits to [low, high]; NaN stays NaN.
TRAINCTL_INLINE V clamp(V x, float low, float high) {
  return -maximum(splat(-high), -maximum(splat(low), x));
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
  float t[kLanes];
  std::memcpy(t, &v, sizeof t);
  float best = t[0];
  for (int i = 1; i < kLanes; ++i) {
    best = t[i] > best ? t[i] : best;
  }
  return best;
}

/// e^x to about 1 ulp; overflows to infinity, NaN stays NaN. Below the smallest normal number it is 0: an Intel
/// core takes a hundred cycles for a number below that, and masked scores all are. Coefficients: Cephes expf.
TRAINCTL_INLINE V exponential(V x) {
  constexpr float kLogOfSmallest = -87.3365f;
#if !defined(__AVX512F__)
  const VInt underflows = x < splat(kLogOfSmallest);
#else
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x.part[0], _mm512_set1_ps(kLogOfSmallest), _CMP_NLT_UQ);
#endif
  x = clamp(x, kLogOfSmallest, 89.0f);
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
  return {{(Register)_mm512_maskz_scalef_ps(normal, (__m512)p.part[0], (__m512)n.part[0])}};
#else
  // Two powers of two, since 2^n alone leaves the range of the exponent at both ends.
  const VInt exponent = bits_of(shifted) - bits_of(magic);
  const VInt half = each_register([&](int i) { return exponent.part[i] >> 1; });
  return select(underflows, V{}, p * power_of_two(half) * power_of_two(exponent - half));
#endif
}

/// tanh(x) to about 2 ulp: an odd polynomial (the Chebyshev series of (tanh(x) / x - 1) / x^2 over x^2) where
/// 1 - 2 / (1 + e^2x) would cancel. NaN stays NaN.
TRAINCTL_INLINE V hyperbolic_tangent(V x) {
  constexpr float kSmall = 0.6f;
  const V w = x * x;
  V p = splat(-0.00627638903f);
  p = fma(p, w, splat(0.0211162151f));
  p = fma(p, w, splat(-0.0538751385f));
  p = fma(p, w, splat(0.13332924f));
  p = fma(p, w, splat(-0.333333304f));
  const V near = fma(p * w, x, x), far = splat(1.0f) - splat(2.0f) / (exponential(x + x) + 1.0f);
  return select(w < splat(kSmall * kSmall), near, far);
}

/// Added to x it is `offset`, and where that is 0 it changes no bit, not even the sign of a zero.
TRAINCTL_INLINE float exact_offset(float offset) { return offset == 0 ? -0.0f : offset; }

// ---- memory: a full vector, or the first `count` lanes (the others read as 0)
// ------------------------------
struct Full {};
struct Tail {
  int count;
};

TRAINCTL_INLINE Register widen(HalfRegister h) {
  return (Register)(__builtin_convertvector(h, WordRegister) << 16);
}

/// To the nearest bf16, ties to even.
TRAINCTL_INLINE HalfRegister narrow(Register v) {
  const WordRegister u = (WordRegister)v;
  const WordRegister rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const WordRegister quiet_nan = (u >> 16) | 0x40u;
  return __builtin_convertvector((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded, HalfRegister);
}
TRAINCTL_INLINE V rounded_to_bf16(V v) {
  return each_register([&](int i) { return widen(narrow(v.part[i])); });
}

/// binary16 as f32, exactly; f16 (runtime/base/dtype.h) has the formula.
TRAINCTL_INLINE Register widen_f16(HalfRegister h) {
#if defined(__AVX512F__)
  return (Register)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
#elif defined(__F16C__)
  return (Register)_mm256_cvtph_ps((__m128i)h);
#else
  constexpr uint32_t kBias = 112u << 23;
  const WordRegister u = __builtin_convertvector(h, WordRegister), sign = (u & 0x8000u) << 16,
                     size = u & 0x7fffu;
  const WordRegister small = (WordRegister)(__builtin_convertvector((IntRegister)size, Register) * 0x1p-24f);
  const WordRegister quiet = size > 0x7c00u ? WordRegister{} + 0x400000u : WordRegister{};
  const WordRegister large =
      ((size << 13) + (size >= 0x7c00u ? WordRegister{} + 2 * kBias : WordRegister{} + kBias)) | quiet;
  return (Register)(sign | (size < 0x400u ? small : large));
#endif
}

/// To the nearest f16, ties to even.
TRAINCTL_INLINE HalfRegister narrow_f16(Register v) {
#if defined(__AVX512F__)
  return (HalfRegister)_mm512_maskz_cvtps_ph(0xffff, (__m512)v,
                                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  return (HalfRegister)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  constexpr uint32_t kBias = 112u << 23;
  const WordRegister u = (WordRegister)v, sign = (u >> 16) & 0x8000u, size = u & 0x7fffffffu;
  const WordRegister normal = (size - kBias + 0xfffu + ((size >> 13) & 1u)) >> 13;
  const WordRegister small = (WordRegister)((Register)size + 0.5f) - 0x3f000000u;
  const WordRegister finite = size >= 0x38800000u ? normal : small;
  const WordRegister quiet_nan = ((size >> 13) & 0x1ffu) | 0x7e00u;
  const WordRegister rest = size > 0x7f800000u ? quiet_nan : WordRegister{} + 0x7c00u;
  return __builtin_convertvector(sign | (size >= 0x477ff000u ? rest : finite), HalfRegister);
#endif
}

TRAINCTL_INLINE V load(const float* p, Full) {
  return each_register([&](int i) { return Register(reinterpret_cast<const RegisterUnaligned*>(p)[i]); });
}
TRAINCTL_INLINE V load(const bf16* p, Full) {
  return each_register([&](int i) { return widen(reinterpret_cast<const HalfRegisterUnaligned*>(p)[i]); });
}
TRAINCTL_INLINE V load(const f16* p, Full) {
  return each_register(
      [&](int i) { return widen_f16(reinterpret_cast<const HalfRegisterUnaligned*>(p)[i]); });
}
TRAINCTL_INLINE void store(float* p, V v, Full) {
  each_register([&](int i) { return reinterpret_cast<RegisterUnaligned*>(p)[i] = v.part[i]; });
}
TRAINCTL_INLINE void store(bf16* p, V v, Full) {
  each_register([&](int i) { return reinterpret_cast<HalfRegisterUnaligned*>(p)[i] = narrow(v.part[i]); });
}
TRAINCTL_INLINE void store(f16* p, V v, Full) {
  each_register(
      [&](int i) { return reinterpret_cast<HalfRegisterUnaligned*>(p)[i] = narrow_f16(v.part[i]); });
}

TRAINCTL_INLINE V load(const float* p, Tail tail) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, size_t(tail.count) * sizeof(float));
  return load(lanes, Full{});
}
template <typename Half>
requires(sizeof(Half) == 2) TRAINCTL_INLINE V load(const Half* p, Tail tail) {
  Half lanes[kLanes] = {};
  std::memcpy(static_cast<void*>(lanes), p, size_t(tail.count) * sizeof(Half));
  return load(lanes, Full{});
}
TRAINCTL_INLINE void store(float* p, V v, Tail tail) { std::memcpy(p, &v, size_t(tail.count) * sizeof(float)); }
template <typename Half>
requires(sizeof(Half) == 2) TRAINCTL_INLINE void store(Half* p, V v, Tail tail) {
  Half lanes[kLanes];
  store(lanes, v, Full{});
  std::memcpy(static_cast<void*>(p), lanes, size_t(tail.count) * sizeof(Half));
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

/// Calls body(column, 0 or 1, Full or Tail) for n columns; the vectors alternate. For two sums that do not
/// wait for each other; the number is known where the body is inlined, so that both stay in registers.
template <typename Body>
TRAINCTL_INLINE void for_lanes_in_turns(int64_t n, Body body) {
  int64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    body(c, 0, Full{});
    body(c + kLanes, 1, Full{});
  }
  if (c + kLanes <= n) {
    body(c, 0, Full{});
    if (c + kLanes < n) {
      body(c + kLanes, 1, Tail{int(n - c - kLanes)});
    }
  } else if (c < n) {
    body(c, 0, Tail{int(n - c)});
  }
}

TRAINCTL_INLINE V keep_first(V v, Full) { return v; }
TRAINCTL_INLINE V keep_first(V v, Tail tail) { return select(first_lanes(tail.count), v, V{}); }

/// Sum over c of term(c, lanes), with the lanes beyond the row left out.
template <typename Term>
TRAINCTL_INLINE float row_sum(int64_t n, Term term) {
  V total[4] = {};
  int64_t c = 0;
  for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) {
      total[i] += term(c + i * kLanes, Full{});
    }
  }
  for (; c + kLanes <= n; c += kLanes) {
    total[0] += term(c, Full{});
  }
  if (c < n) {
    const Tail tail{int(n - c)};
    total[1] += keep_first(term(c, tail), tail);
  }
  return lane_sum((total[0] + total[1]) + (total[2] + total[3]));
}

/// Calls body(T{}) with T the C++ type of `dtype` (f32, bf16 or f16).
template <typename Body>
TRAINCTL_INLINE void with_type(DType dtype, Body body) {
  if (dtype == DType::f32) {
    body(float{});
  } else if (dtype == DType::f16) {
    body(f16{});
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
