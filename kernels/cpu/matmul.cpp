#include "kernels/cpu/cpu_backend.h"
#include "kernels/plain_weight.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const Pack& op) { PlainWeight::pack(op); }

Matrix CpuBackend::widened(const Matrix& x, ScratchUse use) {
  if (x.dtype == DType::f32) {
    return x;
  }
  const int64_t stride = spread_stride(DType::f32, x.cols);
  float* room = scratch_floats(use, size_t(x.rows * stride));
  const Matrix wide = matrix(room, DType::f32, x.rows, stride).columns(0, x.cols);
  compute(Copy{.src = x, .dst = wide});
  return wide;
}

void CpuBackend::multiply(ProductArguments p) {
  if (multiplies(p.left.dtype)) {
    products_.multiply(p);
    return;
  }
  const Matrix out = p.out;
  p.left = widened(p.left, ScratchUse::widened_left);
  p.right = widened(p.right, ScratchUse::widened_right);
  if (out.dtype != DType::f32) {
    p.out = matrix(scratch_floats(ScratchUse::widened_out, size_t(out.count())), DType::f32, out.rows, out.cols);
  }
  products_.multiply(p);
  if (out.dtype != DType::f32) {
    compute(Copy{.src = p.out, .dst = out});
  }
}

void CpuBackend::multiply(std::span<const ProductArguments> products) {
  if (products.empty() || multiplies(products.front().left.dtype))
    products_.multiply(products);
  else
    for (const ProductArguments& p : products) multiply(p);
}

void CpuBackend::compute(const LinearForward& op) {
  const Matrix& w = PlainWeight::of(op.w);
  if (op.bias) check_f32_row(op.bias, w.rows);
  multiply({.left = op.x, .right = w, .out = op.y, .bias = op.bias.as<float>(), .right_transposed = true});
}

void CpuBackend::compute(const LinearBackwardInput& op) {
  multiply({.left = op.dy, .right = PlainWeight::of(op.w), .out = op.dx});
}

void CpuBackend::compute(const LinearBackwardWeight& op) {
  if (op.dy.rows > 0) {
    multiply({.left = op.dy, .right = op.x, .out = op.dw, .left_transposed = true, .accumulate = op.accumulate});
  } else if (!op.accumulate) {
    for (int64_t n = 0; n < op.dw.rows; ++n) {
      compute(FillZero{op.dw.row_range(n, 1).data, size_t(op.dw.cols) * sizeof(float)});
    }
  }
  if (op.dbias) {
    over_rows(op.dy.cols, kColumnSums, [&](int64_t c, int64_t n) {
      kernels_.column_sums(op.dy.columns(c, n), op.dbias.as<float>() + c, op.accumulate);
    });
  }
}

}  // namespace trainctl::kernels::cpu
