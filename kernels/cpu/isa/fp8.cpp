#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {
namespace {

TRAINCTL_INLINE V size_of_each(V x) { return maximum(x, -x); }  // NaN stays NaN
constexpr float kInfinity = __builtin_inff();

/// The larger of `largest` and the finite sizes of x.
TRAINCTL_INLINE V larger_of(V largest, V x) {
  const V size = size_of_each(x);
  return maximum(largest, select(size < splat(kInfinity), size, V{}));
}

// Nothing of fp8.h is called: this is compiled for several instruction sets, and that but once.
constexpr Fp8Format kFormats[] = {format_of(Fp8::e4m3), format_of(Fp8::e5m2)};

/// The powers of two between groups of values and a format; see fp8_scale.
struct Scale {
  V up, down;
  TRAINCTL_INLINE Scale(const Fp8Format& format, V largest) {
    const VInt exponent = each_register([&](int i) {
      const IntRegister bits = (IntRegister)largest.part[i], mantissa = bits & 0x7fffff;
      const IntRegister e = (bits >> 23) - 127 - format.greatest - (mantissa > 0x600000);
      return e > kLeastScale ? e : kLeastScale - IntRegister{};
    });
    up = power_of_two(exponent);
    down = power_of_two(VInt{} - exponent);
  }
};

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

template <typename T>
TRAINCTL_INLINE float largest_of(const T* x, int64_t n) {
  V largest = {};
  for_lanes(n, [&](int64_t c, auto lanes) { largest = larger_of(largest, load(x + c, lanes)); });
  return lane_max(largest);
}

template <typename T>
TRAINCTL_INLINE void round_row(const Rounding& rounding, const Scale& scale, const T* x, T* y, int64_t n) {
  for_lanes(n, [&](int64_t c, auto lanes) {
    store(y + c, rounding.of(load(x + c, lanes) * scale.down) * scale.up, lanes);
  });
}

}  // namespace

float largest_finite(const Matrix& x) {
  float largest = 0;
  with_type(x.dtype, [&](auto t) {
    for (int64_t r = 0; r < x.rows; ++r) {
      const float of_row = largest_of(row<decltype(t)>(x, r), x.cols);
      largest = of_row > largest ? of_row : largest;
    }
  });
  return largest;
}

void quantize_group(const Quantize& op, float largest) {
  const Fp8Format& format = kFormats[size_t(op.format)];
  const Rounding rounding(format);
  const Scale scale(format, splat(largest));
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.x.rows; ++r)
      round_row(rounding, scale, row<T>(op.x, r), row<T>(op.y, r), op.x.cols);
  });
}

void quantize_rows(const Quantize& op) {
  const Fp8Format& format = kFormats[size_t(op.format)];
  const Rounding rounding(format);
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.x.rows; ++r)
      for (int64_t c = 0; c < op.x.cols; c += op.group) {
        const int64_t n = op.x.cols - c < op.group ? op.x.cols - c : op.group;
        const T* x = row<T>(op.x, r) + c;
        round_row(rounding, Scale(format, splat(largest_of(x, n))), x, row<T>(op.y, r) + c, n);
      }
  });
}

void quantize_columns(const Quantize& op) {
  const Fp8Format& format = kFormats[size_t(op.format)];
  const Rounding rounding(format);
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for_lanes(op.x.cols, [&](int64_t c, auto lanes) {
      V largest = {};
      for (int64_t r = 0; r < op.x.rows; ++r) largest = larger_of(largest, load(row<T>(op.x, r) + c, lanes));
      const Scale scale(format, largest);
      for (int64_t r = 0; r < op.x.rows; ++r)
        store(row<T>(op.y, r) + c, rounding.of(load(row<T>(op.x, r) + c, lanes) * scale.down) * scale.up,
              lanes);
    });
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
