#include "kernels/cpu/isa/rounding.h"
#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {
namespace {

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
