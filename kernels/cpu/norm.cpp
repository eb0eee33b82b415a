#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {
// Also the blocks by which parameter gradients are summed: changing it changes bits.
constexpr int64_t kNormRows = 16;

Matrix rows_of(const Matrix& m, int64_t first, int64_t n) { return m ? m.row_range(first, n) : m; }
}  // namespace

void CpuBackend::norm_forward(Stream&, NormKind kind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps,
                              Matrix sum, Matrix y, float* stats) {
  check_norm(kind, x, y, weight, bias);
  if (delta) {
    check_same(x, delta);
    check_same(x, sum);
  }
  over_rows(x.rows, kNormRows, [&](int64_t r, int64_t n) {
    kernels_.norm_forward(kind, rows_of(x, r, n), rows_of(delta, r, n), weight.as<float>(), bias.as<float>(), eps,
                          rows_of(sum, r, n), rows_of(y, r, n), stats + 2 * r);
  });
}

void CpuBackend::norm_apply(Stream&, NormKind kind, Matrix x, const float* stats, Matrix weight, Matrix bias,
                            Matrix y) {
  check_norm(kind, x, y, weight, bias);
  over_rows(x.rows, kNormRows, [&](int64_t r, int64_t n) {
    kernels_.norm_apply(kind, rows_of(x, r, n), stats + 2 * r, weight.as<float>(), bias.as<float>(),
                        rows_of(y, r, n));
  });
}

void CpuBackend::norm_backward(Stream&, NormKind kind, Matrix dy, Matrix x, Matrix weight, const float* stats,
                               Matrix dresidual, Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) {
  check_norm(kind, x, dx, weight, dbias);
  check_same(x, dy);
  check_f32_row(dweight, x.cols, false);
  if (dresidual) {
    check_same(x, dresidual);
  }
  if (x.rows == 0 && accumulate) {
    return;
  }
  const int64_t blocks = (x.rows + kNormRows - 1) / kNormRows, c_count = x.cols;
  float* sums = scratch_floats(ScratchUse::op, size_t(blocks * 2 * c_count));
  over_rows(x.rows, kNormRows, [&](int64_t r, int64_t n) {
    float* own = sums + r / kNormRows * 2 * c_count;
    kernels_.norm_backward(kind, rows_of(dy, r, n), rows_of(x, r, n), weight.as<float>(), stats + 2 * r,
                           rows_of(dresidual, r, n), rows_of(dx, r, n), own, own + c_count);
  });
  const auto finish = [&](float* partial, float* to, int64_t n) {
    float* const total = accumulate ? partial : to;   // a column is read before its sum is written
    kernels_.column_sums({partial, DType::f32, blocks, n, 2 * c_count}, total, false);
    if (accumulate) {
      kernels_.add(vector(total, DType::f32, n), vector(to, DType::f32, n));
    }
  };
  over_rows(c_count, kColumnSums, [&](int64_t c, int64_t n) {
    finish(sums + c, dweight.as<float>() + c, n);
    if (dbias) {
      finish(sums + c_count + c, dbias.as<float>() + c, n);
    }
  });
}

}  // namespace trainctl::kernels::cpu
