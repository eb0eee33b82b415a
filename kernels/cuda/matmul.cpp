#include "kernels/cuda/cuda_backend.h"

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

bool CudaBackend::give_product(Stream& stream, Product product, const Matrix& bias) {
  bool given = true;
  give_with_scratch(stream, product.op, bias ? product_bias_scratch(bias.cols) : 0, [&](const Queue& queue, void* scratch) {
    if (bias) {
      // cublasLt.h, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: a bias has the output's dtype (the exceptions are of int8 and fp8). Another one is
      // converted first: that takes a few microseconds; a pass over the output would cost as much as a norm.
      const Matrix rounded = vector(scratch, product.out.dtype, bias.cols);
      const bool fits = bias.dtype == rounded.dtype && stands_on_16_bytes(vector(bias.data, bias.dtype, 0));
      if (!fits) enqueue(queue, Copy{.src = bias, .dst = rounded});
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
    if (given && product.accumulate) enqueue(queue, Add{.src = vector(scratch, DType::f32, dbias.cols), .dst = dbias});
  });
  return given;
}

void CudaBackend::compute(Stream& stream, const LinearForward& op) {
  const Matrix& w = PlainWeight::of(op.w);
  if (op.x.rows == 0) return;
  const int64_t whole = outputs_at_once(w.rows);
  const auto part = [&](int64_t from, int64_t count) {
    give_forward(stream, op.x, w.row_range(from, count), op.bias ? op.bias.columns(from, count) : op.bias,
                 op.y.columns(from, count));
  };
  part(0, whole);
  if (whole < w.rows) part(whole, w.rows - whole);
}

void CudaBackend::give_forward(Stream& stream, const Matrix& x, const Matrix& w, const Matrix& bias, const Matrix& y) {
  Product product{.op = "linear_forward", .left = x, .right = w, .out = y, .right_transposed = true};
  if (bias) product.epilogue = CUBLASLT_EPILOGUE_BIAS;
  if (give_product(stream, product, bias)) return;
  product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  (void)give_product(stream, product, {});
  // One "position": the bias is added to every row.
  compute(stream, AddPosition{.table = bias, .seq_len = 1, .x = y});
}

void CudaBackend::compute(Stream& stream, const LinearBackwardInput& op) {
  const Matrix& w = PlainWeight::of(op.w);
  if (op.dy.rows == 0) return;
  const int64_t whole = outputs_at_once(w.rows), rest = w.rows - whole;
  Product product{.op = "linear_backward_input", .left = op.dy.columns(0, whole), .right = w.row_range(0, whole), .out = op.dx};
  if (rest > 0) {
    // First the few: what is rounded to dx's type before the rest is added is then small.
    Product few = product;
    few.left = op.dy.columns(whole, rest);
    few.right = w.row_range(whole, rest);
    (void)give_product(stream, few, {});
    product.accumulate = true;
  }
  (void)give_product(stream, product, {});
}

void CudaBackend::compute(Stream& stream, const GroupedForward& op) {
  if (is_empty(op)) return;
  give(stream, GroupedForward::kName,
       [&](const Queue& queue) { grouped_forward(queue, op, PlainWeight::of(op.w)); });
}

void CudaBackend::compute(Stream& stream, const GroupedBackwardInput& op) {
  if (is_empty(op)) return;
  give(stream, GroupedBackwardInput::kName,
       [&](const Queue& queue) { grouped_backward_input(queue, op, PlainWeight::of(op.w)); });
}

void CudaBackend::compute(Stream& stream, const LinearGeluForward& op) {
  const Matrix& w = PlainWeight::of(op.w);
  const Product product{.op = "linear_gelu_forward",
                        .left = op.x,
                        .right = w,
                        .out = op.y,
                        .right_transposed = true,
                        .epilogue = op.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX,
                        .aux = op.pre};
  if (has_gelu_epilogue(op.x, w, op.y, op.pre) && give_product(stream, product, op.bias)) return;
  compute(stream, op.product());
  compute(stream, op.activation());
}

void CudaBackend::compute(Stream& stream, const LinearGeluBackwardInput& op) {
  const Matrix& w = PlainWeight::of(op.w);
  const Product product{.op = "linear_gelu_backward_input", .left = op.dy, .right = w, .out = op.dx,
                        .epilogue = CUBLASLT_EPILOGUE_DGELU, .aux = op.pre};
  if (has_gelu_epilogue(op.dy, w, op.dx, op.pre) && give_product(stream, product, {})) return;
  compute(stream, op.product());
  compute(stream, op.activation());
}

void CudaBackend::compute(Stream& stream, const LinearBackwardWeight& op) {
  const Product product{.op = "linear_backward_weight", .left = op.dy, .right = op.x, .out = op.dw, .left_transposed = true,
                        .accumulate = op.accumulate};
  if (op.dy.rows > 0) {
    if (op.dbias && bias_gradients_by_product_ && give_product_with_bias_gradient(stream, product, op.dbias)) return;
    const int64_t whole = outputs_at_once(op.dw.rows), rest = op.dw.rows - whole;
    const auto part = [&](int64_t from, int64_t count) {
      Product some = product;
      some.left = op.dy.columns(from, count);
      some.out = op.dw.row_range(from, count);
      (void)give_product(stream, some, {});
    };
    part(0, whole);
    if (rest > 0) part(whole, rest);
  } else if (!op.accumulate) {
    for (int64_t n = 0; n < op.dw.rows; ++n)
      compute(stream, FillZero{op.dw.row_range(n, 1).data, size_t(op.dw.cols) * sizeof(float)});
  }
  if (!op.dbias) return;
  if (op.dy.rows > 0) {
    give_with_scratch(stream, "column_sum", column_sum_scratch(op.dy.rows, op.dy.cols),
                      [&](const Queue& queue, void* scratch) { cuda::column_sum(queue, op.dy, op.dbias, op.accumulate, scratch); });
  } else if (!op.accumulate) {
    compute(stream, FillZero{op.dbias.data, size_t(op.dbias.cols) * sizeof(float)});
  }
}

}  // namespace trainctl::kernels::cuda
