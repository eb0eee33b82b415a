// The functions of one instruction set for its table. table.h documents them.
#pragma once
#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

void copy(const Matrix& src, const Matrix& dst);
void add(const Matrix& src, const Matrix& dst);
void tree_sum(const void* const* inputs, size_t input_count, void* out, DType dtype, int64_t begin, int64_t n);
void add_rounded(const Matrix& left, const Matrix& right, const Matrix& out);
void norm_forward(NormKind kind, const Matrix& x, const Matrix& delta, const float* weight, const float* bias, float eps,
                  const Matrix& sum, const Matrix& y, float* stats);
void norm_apply(NormKind kind, const Matrix& x, const float* stats, const float* weight, const float* bias,
                const Matrix& y);
void norm_backward(NormKind kind, const Matrix& dy, const Matrix& x, const float* weight, const float* stats,
                   const Matrix& dresidual, const Matrix& dx, float* dweight, float* dbias);
void column_sums(const Matrix& x, float* out, bool accumulate);
void gelu_forward(const Matrix& x, const Matrix& y);
void gelu_backward(const Matrix& x, const Matrix& dy, const Matrix& dx);
void swiglu_forward(const Matrix& gate, const Matrix& up, const Matrix& y);
void swiglu_backward(const Matrix& gate, const Matrix& up, const Matrix& dy, const Matrix& dgate, const Matrix& dup);
void rope(const Matrix& x, int64_t head_dim, int64_t first_position, int64_t seq_len, const float* cos_sin,
          bool inverse);
void attention_forward(const AttentionShape&, const AttentionMatrices&, const AttentionTask&, float* scratch);
void attention_backward(const AttentionShape&, const AttentionMatrices&, const AttentionTask&, float* scratch);
size_t attention_scratch_floats(const AttentionShape&, bool backward);
void cross_entropy_stats(const Matrix& logits, const int32_t* targets, int64_t vocab_begin, float* stats);
void cross_entropy_backward(const Matrix& logits, const int32_t* targets, int64_t vocab_begin, const float* lse,
                            float scale);
void adamw(const AdamWBox& box, const AdamWStep& step);
double sum_squares(const Matrix& x);

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
