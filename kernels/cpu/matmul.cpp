#include "kernels/cpu/cpu_backend.h"
#include "kernels/plain_weight.h"

namespace trainctl::kernels::cpu {

std::unique_ptr<PackedWeight> CpuBackend::make_packed(int64_t n, int64_t k, DType dtype) { return PlainWeight::make(n, k, dtype); }

void CpuBackend::pack(Stream&, Matrix w, PackedWeight& packed) { PlainWeight::pack(w, packed); }

Matrix CpuBackend::widened(Stream& stream, const Matrix& x, ScratchUse use) {
  if (x.dtype == DType::f32) {
    return x;
  }
  const int64_t stride = spread_stride(DType::f32, x.cols);
  float* room = scratch_floats(use, size_t(x.rows * stride));
  const Matrix wide = matrix(room, DType::f32, x.rows, stride).columns(0, x.cols);
  copy(stream, x, wide);
  return wide;
}

void CpuBackend::multiply(Stream& stream, ProductArguments p) {
  if (multiplies_bf16_ || p.left.dtype == DType::f32) {
    products_.multiply(p);
    return;
  }
  const Matrix out = p.out;
  p.left = widened(stream, p.left, ScratchUse::widened_left);
  p.right = widened(stream, p.right, ScratchUse::widened_right);
  if (out.dtype == DType::bf16) {
    p.out = matrix(scratch_floats(ScratchUse::widened_out, size_t(out.count())), DType::f32, out.rows, out.cols);
  }
  products_.multiply(p);
  if (out.dtype == DType::bf16) {
    copy(stream, p.out, out);
  }
}

void CpuBackend::linear_forward(Stream& stream, Matrix x, const PackedWeight& packed, Matrix bias, Matrix y) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(x, w.cols, y, w.rows, w.dtype);
  check_f32_row(bias, w.rows, true);
  multiply(stream, {.left = x, .right = w, .out = y, .bias = bias.as<float>(), .right_transposed = true});
}

void CpuBackend::linear_backward_input(Stream& stream, Matrix dy, const PackedWeight& packed, Matrix dx) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(dy, w.rows, dx, w.cols, w.dtype);
  multiply(stream, {.left = dy, .right = w, .out = dx});
}

void CpuBackend::linear_backward_weight(Stream& stream, Matrix dy, Matrix x, Matrix dw, Matrix dbias,
                                        bool accumulate) {
  check_weight_gradient(dy, x, dw, dbias);
  if (dy.rows > 0) {
    multiply(stream, {.left = dy, .right = x, .out = dw, .left_transposed = true, .accumulate = accumulate});
  } else if (!accumulate) {
    for (int64_t n = 0; n < dw.rows; ++n) {
      fill_zero(stream, dw.row_range(n, 1).data, size_t(dw.cols) * sizeof(float));
    }
  }
  if (dbias) {
    over_rows(dy.cols, kColumnSums, [&](int64_t c, int64_t n) {
      kernels_.column_sums(dy.columns(c, n), dbias.as<float>() + c, accumulate);
    });
  }
}

}  // namespace trainctl::kernels::cpu
