#include "kernels/fp4.h"

#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {
namespace {

float largest_finite(const Matrix& x) {
  float largest = 0;
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.cols; ++c)
      if (std::isfinite(get(x, r, c))) largest = std::max(largest, std::fabs(get(x, r, c)));
  return largest;
}

void mix(const Matrix& x, const Matrix& y, uint32_t signs) {
  for (int64_t r = 0; r < x.rows; r += kFp4Group)
    for (int64_t c = 0; c < x.cols; ++c) {
      const int64_t rows = std::min(kFp4Group, x.rows - r);
      float values[kFp4Group] = {};
      for (int64_t i = 0; i < rows; ++i) values[i] = get(x, r + i, c);
      if (rows == kFp4Group) fp4_mix(values, signs);
      for (int64_t i = 0; i < rows; ++i) put(y, r + i, c, values[i]);
    }
}

struct Fp4Operand {
  Matrix x, y;
  float power = 1;  ///< of two
  bool draws = false;
  RoundingKey key = {};
};

/// The group [r, r + rows) x [c, c + cols).
void round_group(const Fp4Operand& of, int64_t r, int64_t rows, int64_t c, int64_t cols) {
  const float largest = largest_finite(of.x.row_range(r, rows).columns(c, cols)) / of.power;
  const float scale = fp8_value(Fp8::e4m3, fp8_code(Fp8::e4m3, largest / kFp4Largest));
  for (int64_t i = r; i < r + rows; ++i)
    for (int64_t j = c; j < c + cols; ++j) {
      const float value = get(of.x, i, j);
      const float size = scale == 0 ? 0 : std::min(std::fabs(value) / of.power / scale, kFp4Largest);
      const uint32_t noise = weight_noise(of.key, uint32_t(i * of.x.cols + j));
      const float seen = fp4_value(uint8_t(of.draws ? fp4_drawn_code(size, noise) : fp4_code(size)));
      put(of.y, i, j, std::isfinite(value) ? std::copysign(seen * scale * of.power, value) : NAN);
    }
}

}  // namespace

void compute(const QuantizeFp4& op) {
  const int64_t height = op.groups == Fp8Groups::rows ? 1 : kFp4Group,
                width = op.groups == Fp8Groups::columns ? 1 : kFp4Group;
  op.for_each_part([&](int64_t first, int64_t rows, uint32_t expert) {
    Fp4Operand of{op.x.row_range(first, rows), op.y.row_range(first, rows)};
    if (op.mixes) mix(of.x, of.y, *op.mixes), of.x = of.y;
    of.power = std::ldexp(1.0f, fp4_scale(largest_finite(of.x)));
    of.draws = op.noise.exists, of.key = op.noise.key(expert);
    for (int64_t r = 0; r < rows; r += height)
      for (int64_t c = 0; c < op.x.cols; c += width)
        round_group(of, r, std::min(height, rows - r), c, std::min(width, op.x.cols - c));
  });
}

}  // namespace trainctl::kernels::reference
