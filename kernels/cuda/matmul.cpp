#include "kernels/cuda/cuda_backend.h"
#include "kernels/plain_weight.h"
#include "kernels/shape_checks.h"

namespace trainctl::kernels::cuda {

namespace {

/// The library's GELU epilogues: bf16 only, everything on 16 bytes, and rows of the matrix beside the output a multiple of 8 long
/// (CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD in cublasLt.h).
bool has_gelu_epilogue(const Matrix& left, const Matrix& w, const Matrix& out, const Matrix& pre) {
  return out.dtype == DType::bf16 && out.rows > 0 && out.cols % 8 == 0 && stands_on_16_bytes(left) && stands_on_16_bytes(w) &&
         stands_on_16_bytes(out) && stands_on_16_bytes(pre);
}

/// How many outputs of a wide weight one product takes; the few left over are products of their own. The library has fast kernels only for
/// sizes that are multiples of 8: for 50257 outputs it takes one that reaches a seventh of the speed.
int64_t outputs_at_once(int64_t n) {
  constexpr int64_t kWide = 1024, kMultiple = 8;
  return n < kWide ? n : n / kMultiple * kMultiple;
}

}  // namespace

std::unique_ptr<PackedWeight> CudaBackend::make_packed(int64_t n, int64_t k, DType dtype) { return PlainWeight::make(n, k, dtype); }

void CudaBackend::pack(Stream&, Matrix w, PackedWeight& packed) { PlainWeight::pack(w, packed); }

bool CudaBackend::give_product(Stream& stream, Product product, const Matrix& bias) {
  bool given = true;
  give_with_scratch(stream, product.op, bias ? product_bias_scratch(bias.cols) : 0, [&](const Queue& queue, void* scratch) {
    if (bias) {
      // cublasLt.h, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: a bias has the output's dtype (the exceptions are of int8 and fp8). Another one is
      // converted first: that takes a few microseconds; a pass over the output would cost as much as a norm.
      const Matrix rounded = vector(scratch, product.out.dtype, bias.cols);
      const bool fits = bias.dtype == rounded.dtype && stands_on_16_bytes(vector(bias.data, bias.dtype, 0));
      if (!fits) cuda::copy(queue, bias, rounded);
      product.bias = fits ? bias.data : scratch;
    }
    given = products_.multiply(queue.stream, product, at_least(workspace_, kProductWorkspaceBytes));
  });
  return given;
}

bool CudaBackend::give_product_with_bias_gradient(Stream& stream, Product product, const Matrix& dbias) {
  // Column-major, dy is the right factor (B) of dw, and its sums over the inner dimension are the bias gradient.
  product.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  for (const Matrix& m : {product.left, product.right, product.out, vector(dbias.data, dbias.dtype, 0)})
    if (!stands_on_16_bytes(m)) return false;
  bool given = false;
  give_with_scratch(stream, product.op, product_bias_scratch(dbias.cols), [&](const Queue& queue, void* scratch) {
    product.bias = product.accumulate ? scratch : dbias.data;
    given = products_.multiply(queue.stream, product, at_least(workspace_, kProductWorkspaceBytes));
    if (given && product.accumulate) cuda::add(queue, vector(scratch, DType::f32, dbias.cols), dbias);
  });
  return given;
}

void CudaBackend::linear_forward(Stream& stream, Matrix x, const PackedWeight& packed, Matrix bias, Matrix y) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(x, w.cols, y, w.rows, w.dtype);
  check_bias(bias, w.rows, bias_dtype(x.dtype));
  if (x.rows == 0) return;
  const int64_t whole = outputs_at_once(w.rows);
  give_forward(stream, x, w.row_range(0, whole), bias ? bias.columns(0, whole) : bias, y.columns(0, whole));
  if (const int64_t rest = w.rows - whole)
    give_forward(stream, x, w.row_range(whole, rest), bias ? bias.columns(whole, rest) : bias, y.columns(whole, rest));
}

void CudaBackend::give_forward(Stream& stream, const Matrix& x, const Matrix& w, const Matrix& bias, const Matrix& y) {
  Product product{.op = "linear_forward", .left = x, .right = w, .out = y, .right_transposed = true};
  if (bias) product.epilogue = CUBLASLT_EPILOGUE_BIAS;
  if (give_product(stream, product, bias)) return;
  product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  (void)give_product(stream, product, {});
  add_position(stream, bias, 0, 1, y);   // one "position": the bias is added to every row
}

void CudaBackend::linear_backward_input(Stream& stream, Matrix dy, const PackedWeight& packed, Matrix dx) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(dy, w.rows, dx, w.cols, w.dtype);
  if (dy.rows == 0) return;
  const int64_t whole = outputs_at_once(w.rows), rest = w.rows - whole;
  Product product{.op = "linear_backward_input", .left = dy.columns(0, whole), .right = w.row_range(0, whole), .out = dx};
  if (rest > 0) {
    // First the few: what is rounded to dx's type before the rest is added is then small.
    Product few = product;
    few.left = dy.columns(whole, rest);
    few.right = w.row_range(whole, rest);
    (void)give_product(stream, few, {});
    product.accumulate = true;
  }
  (void)give_product(stream, product, {});
}

void CudaBackend::linear_gelu_forward(Stream& stream, Matrix x, const PackedWeight& packed, Matrix bias, Matrix pre, Matrix y) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(x, w.cols, y, w.rows, w.dtype);
  check_bias(bias, w.rows, bias_dtype(x.dtype));
  check_same(pre, y);
  const Product product{.op = "linear_gelu_forward",
                        .left = x,
                        .right = w,
                        .out = y,
                        .right_transposed = true,
                        .epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX,
                        .aux = pre};
  if (has_gelu_epilogue(x, w, y, pre) && give_product(stream, product, bias)) return;
  Backend::linear_gelu_forward(stream, x, packed, bias, pre, y);
}

void CudaBackend::linear_gelu_backward_input(Stream& stream, Matrix dy, const PackedWeight& packed, Matrix pre, Matrix dx) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(dy, w.rows, dx, w.cols, w.dtype);
  check_same(pre, dx);
  const Product product{.op = "linear_gelu_backward_input", .left = dy, .right = w, .out = dx, .epilogue = CUBLASLT_EPILOGUE_DGELU,
                        .aux = pre};
  if (has_gelu_epilogue(dy, w, dx, pre) && give_product(stream, product, {})) return;
  Backend::linear_gelu_backward_input(stream, dy, packed, pre, dx);
}

void CudaBackend::linear_backward_weight(Stream& stream, Matrix dy, Matrix x, Matrix dw, Matrix dbias, bool accumulate) {
  check_weight_gradient(dy, x, dw, dbias);
  const Product product{.op = "linear_backward_weight", .left = dy, .right = x, .out = dw, .left_transposed = true,
                        .accumulate = accumulate};
  if (dy.rows > 0) {
    if (dbias && bias_gradients_by_product_ && give_product_with_bias_gradient(stream, product, dbias)) return;
    const int64_t whole = outputs_at_once(dw.rows), rest = dw.rows - whole;
    const auto part = [&](int64_t from, int64_t count) {
      Product some = product;
      some.left = dy.columns(from, count);
      some.out = dw.row_range(from, count);
      (void)give_product(stream, some, {});
    };
    part(0, whole);
    if (rest > 0) part(whole, rest);
  } else if (!accumulate) {
    for (int64_t n = 0; n < dw.rows; ++n) fill_zero(stream, dw.row_range(n, 1).data, size_t(dw.cols) * sizeof(float));
  }
  if (!dbias) return;
  if (dy.rows > 0) {
    give_with_scratch(stream, "column_sum", column_sum_scratch(dy.rows, dy.cols),
                      [&](const Queue& queue, void* scratch) { cuda::column_sum(queue, dy, dbias, accumulate, scratch); });
  } else if (!accumulate) {
    fill_zero(stream, dbias.data, size_t(dbias.cols) * sizeof(float));
  }
}

}  // namespace trainctl::kernels::cuda
