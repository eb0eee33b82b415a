#include "kernels/fp8.h"

#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {
namespace {

/// One group.
void quantize(const Matrix& x, const Matrix& y, Fp8 format) {
  float largest = 0;
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.cols; ++c)
      if (std::isfinite(get(x, r, c))) largest = std::max(largest, std::fabs(get(x, r, c)));
  const double scale = std::ldexp(1.0, fp8_scale(format, largest));
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.cols; ++c) {
      const double value = get(x, r, c);
      const float seen = fp8_value(format, fp8_code(format, float(value / scale)));
      put(y, r, c, std::isfinite(value) ? scale * seen : NAN);
    }
}

/// Groups of `height` by `width`.
void quantize(const Matrix& x, const Matrix& y, Fp8 format, int64_t height, int64_t width) {
  for (int64_t r = 0; r < x.rows; r += height)
    for (int64_t c = 0; c < x.cols; c += width) {
      const int64_t rows = std::min(height, x.rows - r), cols = std::min(width, x.cols - c);
      quantize(x.row_range(r, rows).columns(c, cols), y.row_range(r, rows).columns(c, cols), format);
    }
}

void quantize(const Matrix& x, const Matrix& y, Fp8 format, Fp8Groups groups, int64_t group) {
  switch (groups) {
    case Fp8Groups::rows: return quantize(x, y, format, 1, group);
    case Fp8Groups::columns: return quantize(x, y, format, group, 1);
    case Fp8Groups::blocks: return quantize(x, y, format, group, group);
    case Fp8Groups::whole: return quantize(x, y, format);
  }
}

}  // namespace

void compute(const Quantize& op) {
  if (!op.offsets) return quantize(op.x, op.y, op.format, op.groups, op.group);
  const auto* begins = op.offsets.as<int32_t>();
  for (int64_t e = 0; e + 1 < op.offsets.cols; ++e) {
    const int64_t begin = begins[e], rows = begins[e + 1] - begin;
    quantize(op.x.row_range(begin, rows), op.y.row_range(begin, rows), op.format, op.groups, op.group);
  }
}

void compute(const QuantizeWeight& op) {
  const int64_t rows = op.w.rows / op.parts;
  for (int64_t part = 0; part < op.parts; ++part) {
    const auto of = [&](const Matrix& m) { return m.row_range(part * rows, rows); };
    quantize(of(op.w), of(op.result()), Fp8::e4m3, op.groups, op.group);
  }
}

}  // namespace trainctl::kernels::reference
