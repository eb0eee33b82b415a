#include <nvtx3/nvToolsExt.h>

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/limits.h"
#include "kernels/shape_checks.h"

namespace trainctl::kernels::cuda {

CudaBackend::CudaBackend(const CudaOptions& options)
    : device_(std::make_shared<Device>(options.device, options.check_each_op)),
      bias_gradients_by_product_(options.bias_gradients_by_product), products_(options.tf32), tables_(device_) {}

void* CudaBackend::at_least(std::unique_ptr<CudaBuffer>& buffer, size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!buffer || buffer->bytes() < bytes) {
    buffer.reset();   // waits for the ops that use it
    buffer = std::make_unique<CudaBuffer>(device_, bytes);
  }
  return buffer->data();
}

void CudaBackend::reserve_scratch(const ScratchShape& shape) {
  const std::lock_guard lock(shared_);
  at_least(scratch_, op_scratch_bytes(shape));
  if (shape.rows > 0) at_least(workspace_, kProductWorkspaceBytes);
  if (shape.optimizer_boxes > 0) tables_.reserve(optimizer_table_bytes(shape));
}

// ---- copies -------------------------------------------------------------------------------------------------------------------------

void CudaBackend::copy_to_device(Stream& stream, void* device, const void* host, size_t bytes) {
  if (bytes == 0) return;
  give(stream, "copy_to_device", [&](const Queue& queue) {
    check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, queue.stream), "copy_to_device", "cudaMemcpyAsync");
  });
}

void CudaBackend::copy_to_host(Stream& stream, void* host, const void* device, size_t bytes) {
  if (bytes == 0) return;
  give(stream, "copy_to_host", [&](const Queue& queue) {
    check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, queue.stream), "copy_to_host", "cudaMemcpyAsync");
  });
}

void CudaBackend::copy_on_device(Stream& stream, void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return;
  give(stream, "copy_on_device", [&](const Queue& queue) {
    check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, queue.stream), "copy_on_device", "cudaMemcpyAsync");
  });
}

void CudaBackend::begin_range(const char* name) { nvtxRangePushA(name); }
void CudaBackend::end_range() { nvtxRangePop(); }

void CudaBackend::fill_zero(Stream& stream, void* data, size_t bytes) {
  if (bytes == 0) return;
  give(stream, "fill_zero", [&](const Queue& queue) {
    check_cuda(cudaMemsetAsync(data, 0, bytes, queue.stream), "fill_zero", "cudaMemsetAsync");
  });
}

void CudaBackend::copy(Stream& stream, Matrix src, Matrix dst) {
  check_same_shape(src, dst);
  if (src.count() == 0) return;
  give(stream, "copy", [&](const Queue& queue) { cuda::copy(queue, src, dst); });
}

void CudaBackend::add(Stream& stream, Matrix src, Matrix dst) {
  check_same(src, dst);
  if (src.count() == 0) return;
  give(stream, "add", [&](const Queue& queue) { cuda::add(queue, src, dst); });
}

void CudaBackend::add_rounded(Stream& stream, Matrix left, Matrix right, Matrix out) {
  check_same(left, right);
  check_same_shape(left, out);
  if (out.count() == 0) return;
  give(stream, "add_rounded", [&](const Queue& queue) { cuda::add_rounded(queue, left, right, out); });
}

static_assert(size_t(kMostTreeInputs) == kTreeSumInputs);
void CudaBackend::tree_sum(Stream& stream, std::span<const void* const> inputs, void* out, DType dtype, int64_t count) {
  ENSURE(!inputs.empty() && inputs.size() <= size_t(kMostTreeInputs) && is_activation(dtype), "{} inputs", inputs.size());
  if (count == 0) return;
  give(stream, "tree_sum", [&](const Queue& queue) { cuda::tree_sum(queue, inputs, out, dtype, count); });
}

// ---- embedding ----------------------------------------------------------------------------------------------------------------------

void CudaBackend::embedding_forward(Stream& stream, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out) {
  check_embedding(table, out);
  if (out.count() == 0) return;
  give(stream, "embedding_forward", [&](const Queue& queue) { cuda::embedding_forward(queue, ids, table, vocab_begin, out); });
}

void CudaBackend::embedding_backward(Stream& stream, const int32_t* ids, Matrix dout, int64_t vocab_begin, Matrix dtable) {
  check_embedding(dtable, dout);
  ENSURE(dtable.dtype == DType::f32);
  if (dout.count() == 0) return;
  give_with_scratch(stream, "embedding_backward", embedding_backward_scratch(dout.rows),
                    [&](const Queue& queue, void* scratch) {
                      cuda::embedding_backward(queue, ids, dout, vocab_begin, dtable, scratch);
                    });
}

void CudaBackend::add_position(Stream& stream, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) {
  check_embedding(table, x);
  ENSURE(seq_len > 0 && seq_len <= table.rows, "T = {}, {} positions", seq_len, table.rows);
  if (x.count() == 0) return;
  give(stream, "add_position", [&](const Queue& queue) { cuda::add_position(queue, table, first_row, seq_len, x); });
}

void CudaBackend::add_position_backward(Stream& stream, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) {
  check_embedding(dtable, dx);
  ENSURE(dtable.dtype == DType::f32 && seq_len > 0 && seq_len <= dtable.rows, "T = {}, {} positions", seq_len, dtable.rows);
  if (dx.count() == 0) return;
  give(stream, "add_position_backward",
       [&](const Queue& queue) { cuda::add_position_backward(queue, dx, first_row, seq_len, dtable); });
}

// ---- norms --------------------------------------------------------------------------------------------------------------------------

void CudaBackend::norm_forward(Stream& stream, NormKind kind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps, Matrix sum,
                               Matrix y, float* stats) {
  check_norm(kind, x, y, weight, bias);
  if (delta) {
    check_same(x, delta);
    check_same(x, sum);
  }
  if (x.count() == 0) return;
  give(stream, "norm_forward",
       [&](const Queue& queue) { cuda::norm_forward(queue, kind, x, delta, weight, bias, eps, sum, y, stats); });
}

void CudaBackend::norm_apply(Stream& stream, NormKind kind, Matrix x, const float* stats, Matrix weight, Matrix bias, Matrix y) {
  check_norm(kind, x, y, weight, bias);
  if (x.count() == 0) return;
  give(stream, "norm_apply", [&](const Queue& queue) { cuda::norm_apply(queue, kind, x, stats, weight, bias, y); });
}

void CudaBackend::norm_backward(Stream& stream, NormKind kind, Matrix dy, Matrix x, Matrix weight, const float* stats, Matrix dresidual,
                                Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) {
  check_norm(kind, x, dx, weight, dbias);
  check_same(x, dy);
  check_f32_row(dweight, x.cols, false);
  if (dresidual) check_same(x, dresidual);
  if (x.count() == 0) {
    if (!accumulate) fill_zero(stream, dweight.data, size_t(dweight.count()) * sizeof(float));
    if (!accumulate && dbias) fill_zero(stream, dbias.data, size_t(dbias.count()) * sizeof(float));
    return;
  }
  give_with_scratch(stream, "norm_backward", norm_backward_scratch(x.rows, x.cols), [&](const Queue& queue, void* scratch) {
    cuda::norm_backward(queue, kind, dy, x, weight, stats, dresidual, dx, dweight, dbias, accumulate, scratch);
  });
}

// ---- activations and attention ------------------------------------------------------------------------------------------------------

void CudaBackend::gelu_forward(Stream& stream, Matrix x, Matrix y) {
  check_same(x, y);
  if (x.count() == 0) return;
  give(stream, "gelu_forward", [&](const Queue& queue) { cuda::gelu_forward(queue, x, y); });
}

void CudaBackend::gelu_backward(Stream& stream, Matrix x, Matrix dy, Matrix dx) {
  check_same(x, dy);
  check_same(x, dx);
  if (x.count() == 0) return;
  give(stream, "gelu_backward", [&](const Queue& queue) { cuda::gelu_backward(queue, x, dy, dx); });
}

void CudaBackend::swiglu_forward(Stream& stream, Matrix gate, Matrix up, Matrix y) {
  check_same(gate, up);
  check_same(gate, y);
  if (gate.count() == 0) return;
  give(stream, "swiglu_forward", [&](const Queue& queue) { cuda::swiglu_forward(queue, gate, up, y); });
}

void CudaBackend::swiglu_backward(Stream& stream, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) {
  check_same(gate, up);
  check_same(gate, dy);
  check_same(gate, dgate);
  check_same(gate, dup);
  if (gate.count() == 0) return;
  give(stream, "swiglu_backward", [&](const Queue& queue) { cuda::swiglu_backward(queue, gate, up, dy, dgate, dup); });
}

void CudaBackend::rope(Stream& stream, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) {
  check_rope(x, head_dim, seq_len);
  if (x.count() == 0) return;
  give(stream, "rope", [&](const Queue& queue) { cuda::rope(queue, x, head_dim, seq_len, cos_sin, inverse); });
}

void CudaBackend::attention_forward(Stream& stream, const AttentionShape& shape, Matrix q, Matrix k, Matrix v, Matrix out, float* lse) {
  check_attention(shape, q, k, v, out);
  check_causal(shape);
  ENSURE(shape.head_dim <= kMostHeadDim, "head_dim {}, at most {}", shape.head_dim, kMostHeadDim);
  if (q.count() == 0) return;
  give(stream, "attention_forward", [&](const Queue& queue) { cuda::attention_forward(queue, shape, q, k, v, out, lse); });
}

void CudaBackend::attention_backward(Stream& stream, const AttentionShape& shape, Matrix q, Matrix k, Matrix v, Matrix out,
                                     const float* lse, Matrix dout, Matrix dq, Matrix dk, Matrix dv) {
  check_attention(shape, q, k, v, out);
  check_attention(shape, dq, dk, dv, dout);
  check_causal(shape);
  ENSURE(shape.head_dim <= kMostHeadDim, "head_dim {}, at most {}", shape.head_dim, kMostHeadDim);
  if (q.count() == 0) return;
  give_with_scratch(stream, "attention_backward", attention_backward_scratch(shape), [&](const Queue& queue, void* scratch) {
    cuda::attention_backward(queue, shape, q, k, v, out, lse, dout, dq, dk, dv, scratch);
  });
}

// ---- loss ---------------------------------------------------------------------------------------------------------------------------

void CudaBackend::cross_entropy_stats(Stream& stream, Matrix logits, const int32_t* targets, int64_t vocab_begin, float* stats) {
  ENSURE(is_activation(logits.dtype) && logits.cols > 0);
  if (logits.rows == 0) return;
  give(stream, "cross_entropy_stats", [&](const Queue& queue) { cuda::cross_entropy_stats(queue, logits, targets, vocab_begin, stats); });
}

void CudaBackend::cross_entropy_combine(Stream& stream, const float* stats, int parts, int64_t m, float* lse, float* loss) {
  ENSURE(parts > 0);
  if (m == 0) return;
  give(stream, "cross_entropy_combine", [&](const Queue& queue) { cuda::cross_entropy_combine(queue, stats, parts, m, lse, loss); });
}

void CudaBackend::cross_entropy_backward(Stream& stream, Matrix logits, const int32_t* targets, int64_t vocab_begin, const float* lse,
                                         float scale) {
  ENSURE(is_activation(logits.dtype) && logits.cols > 0);
  if (logits.rows == 0) return;
  give(stream, "cross_entropy_backward",
       [&](const Queue& queue) { cuda::cross_entropy_backward(queue, logits, targets, vocab_begin, lse, scale); });
}

// ---- optimizer ----------------------------------------------------------------------------------------------------------------------

void CudaBackend::adamw(Stream& stream, std::span<const AdamWBox> boxes, const AdamWStep& step) {
  for (const AdamWBox& b : boxes) ENSURE(is_activation(b.param.dtype) && b.grad_stride >= (b.param.rows > 1 ? b.param.cols : 0));
  if (boxes.empty()) return;
  give_with_scratch(stream, "adamw", 0, [&](const Queue& queue, void*) {
    const TileTable& table = tables_.of(static_cast<CudaStream&>(stream), boxes);
    cuda::adamw(queue, static_cast<const AdamWBox*>(table.boxes), table.tiles, table.tile_count, step);
  });
}

void CudaBackend::sum_squares(Stream& stream, std::span<const Matrix> boxes, double* out) {
  for (const Matrix& b : boxes) ENSURE(b.dtype == DType::f32);
  if (boxes.empty()) return;
  const auto count = int64_t(boxes.size());
  give_with_scratch(stream, "sum_squares", 0, [&](const Queue& queue, void*) {
    const TileTable& table = tables_.of(static_cast<CudaStream&>(stream), boxes);
    auto* partial = static_cast<double*>(at_least(scratch_, sum_squares_scratch(table.tile_count, count)));
    double* sums = partial + aligned_part(size_t(table.tile_count) * sizeof(double)) / sizeof(double);
    cuda::sum_squares(queue, static_cast<const Matrix*>(table.boxes), count, table.tiles, table.tile_count, table.first_tile, partial,
                      sums);
    check_cuda(cudaMemcpyAsync(out, sums, size_t(count) * sizeof(double), cudaMemcpyDeviceToHost, queue.stream), "sum_squares",
               "cudaMemcpyAsync");
  });
}

void CudaBackend::sum(Stream& stream, const float* x, int64_t n, double* out) {
  const size_t partial_bytes = aligned_part(sum_scratch(n));
  give_with_scratch(stream, "sum", partial_bytes + sizeof(double), [&](const Queue& queue, void* scratch) {
    auto* total = reinterpret_cast<double*>(static_cast<char*>(scratch) + partial_bytes);
    cuda::sum(queue, x, n, total, scratch);
    check_cuda(cudaMemcpyAsync(out, total, sizeof(double), cudaMemcpyDeviceToHost, queue.stream), "sum", "cudaMemcpyAsync");
  });
}

}  // namespace trainctl::kernels::cuda
