// The reference backend: plain single-threaded loops with double accumulation that define each op. Tests
// compare the other backends with it.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host_memory.h"
#include "kernels/shape_checks.h"

namespace trainctl::kernels::reference {

/// Element (r, c) of a f32 or bf16 matrix.
inline float get(const Matrix& m, int64_t r, int64_t c) {
  const int64_t i = r * m.stride + c;
  return m.dtype == DType::f32 ? m.as<float>()[i] : float(m.as<bf16>()[i]);
}

/// Stores `value` rounded to the matrix's dtype.
inline void put(const Matrix& m, int64_t r, int64_t c, double value) {
  const int64_t i = r * m.stride + c;
  if (m.dtype == DType::f32) {
    m.as<float>()[i] = float(value);
  } else {
    m.as<bf16>()[i] = bf16(float(value));
  }
}

class ReferenceBackend final : public HostDevice {
 public:
  std::string name() const override { return "reference"; }
  std::string numerics() const override { return "reference"; }
  void fill_zero(Stream&, void* data, size_t bytes) override;
  void copy(Stream&, Matrix src, Matrix dst) override;
  void add(Stream&, Matrix src, Matrix dst) override;
  void tree_sum(Stream&, std::span<const void* const> inputs, void* out, DType dtype, int64_t count) override;
  void add_rounded(Stream&, Matrix left, Matrix right, Matrix out) override;

  void embedding_forward(Stream&, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out) override;
  void embedding_backward(Stream&, const int32_t* ids, Matrix dout, int64_t vocab_begin, Matrix dtable) override;
  void add_position(Stream&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) override;
  void add_position_backward(Stream&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) override;

  void norm_forward(Stream&, NormKind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps, Matrix sum,
                    Matrix y, float* stats) override;
  void norm_backward(Stream&, NormKind, Matrix dy, Matrix x, Matrix weight, const float* stats, Matrix dresidual,
                     Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) override;
  void norm_apply(Stream&, NormKind, Matrix x, const float* stats, Matrix weight, Matrix bias, Matrix y) override;

  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override;
  void pack(Stream&, Matrix w, PackedWeight& packed) override;
  void linear_forward(Stream&, Matrix x, const PackedWeight& w, Matrix bias, Matrix y) override;
  void linear_backward_input(Stream&, Matrix dy, const PackedWeight& w, Matrix dx) override;
  void linear_backward_weight(Stream&, Matrix dy, Matrix x, Matrix dw, Matrix dbias, bool accumulate) override;

  void gelu_forward(Stream&, Matrix x, Matrix y) override;
  void gelu_backward(Stream&, Matrix x, Matrix dy, Matrix dx) override;
  void swiglu_forward(Stream&, Matrix gate, Matrix up, Matrix y) override;
  void swiglu_backward(Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) override;

  void rope(Stream&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) override;
  void attention_forward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out,
                         float* lse) override;
  void attention_backward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, const float* lse,
                          Matrix dout, Matrix dq, Matrix dk, Matrix dv) override;

  void cross_entropy_stats(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, float* stats) override;
  void cross_entropy_combine(Stream&, const float* stats, int parts, int64_t m, float* lse, float* loss) override;
  void cross_entropy_backward(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, const float* lse,
                              float scale) override;

  void adamw(Stream&, std::span<const AdamWBox> boxes, const AdamWStep& step) override;
  void sum_squares(Stream&, std::span<const Matrix> boxes, double* out) override;
  void sum(Stream&, const float* x, int64_t n, double* out) override;
};

}  // namespace trainctl::kernels::reference
