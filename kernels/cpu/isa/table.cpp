#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

void copy(const Copy& op);
void add(const Add& op);
void tree_sum(const void* const* inputs, size_t input_count, void* out, DType dtype, int64_t begin, int64_t n);
void add_rounded(const AddRounded& op);
void norm_forward(const NormForward& op);
void norm_apply(const NormApply& op);
void norm_backward(const NormBackward& op);
void column_sums(const Matrix& x, float* out, bool accumulate);
void gelu_forward(const GeluForward& op);
void gelu_backward(const GeluBackward& op);
void swiglu_forward(const SwigluForward& op);
void swiglu_backward(const SwigluBackward& op);
void rope(const Rope& op, int64_t first_position);
void attention_forward(const AttentionForward& op, const AttentionTask&, float* scratch);
void attention_backward(const AttentionBackward& op, const AttentionTask&, float* scratch);
size_t attention_scratch_floats(const AttentionShape&, bool backward);
void cross_entropy_stats(const CrossEntropyStats& op);
void cross_entropy_backward(const CrossEntropyBackward& op);
void adamw(const AdamWBox& box, const AdamWStep& step);
double sum_squares(const Matrix& x);

const KernelTable kTable = {
    .copy = copy,
    .add = add,
    .tree_sum = tree_sum,
    .add_rounded = add_rounded,
    .norm_forward = norm_forward,
    .norm_apply = norm_apply,
    .norm_backward = norm_backward,
    .column_sums = column_sums,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .rope = rope,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .attention_scratch_floats = attention_scratch_floats,
    .cross_entropy_stats = cross_entropy_stats,
    .cross_entropy_backward = cross_entropy_backward,
    .adamw = adamw,
    .sum_squares = sum_squares,
};

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
