#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

void copy(const Copy& op);
void add(const Add& op);
void scaled_copy(const Copy& op, float scale);
void add_times(const Add& op, float scale);
void combine_rows(const CombineRows& op);
void tree_sum(const void* const* inputs, size_t input_count, void* out, DType dtype, int64_t begin, int64_t n);
void sum_parts(const PartialSums& sums);
void add_rounded(const AddRounded& op);
void scaled_add(const ScaledAdd& op);
void norm_forward(const NormForward& op);
void norm_apply(const NormApply& op);
void norm_backward(const NormBackward& op);
void group_norm_sums(const GroupNormSums& op);
void group_norm_apply(const GroupNormApply& op);
void group_norm_dots(const GroupNormDots& op);
void group_norm_backward(const GroupNormBackward& op);
void column_sums(const Matrix& x, float* out, bool accumulate);
void activation_forward(const ActivationForward& op);
void activation_backward(const ActivationBackward& op);
void gated_forward(const GatedForward& op);
void gated_backward(const GatedBackward& op);
void sigmoid_gate_forward(const SigmoidGateForward& op);
void sigmoid_gate_backward(const SigmoidGateBackward& op);
void rope(const Rope& op, int64_t first_position);
void attention_forward(const AttentionForward& op, const AttentionTask&, float* scratch);
void attention_backward(const AttentionBackward& op, const AttentionTask&, float* scratch);
void head_scalar_sums(const HeadScalarBackward& op, int64_t first, int64_t count, float* sums);
size_t attention_scratch_floats(const AttentionShape&, bool backward);
void form_logits(const FormLogits& op);
void cross_entropy_stats(const CrossEntropyStats& op);
void cross_entropy_backward(const CrossEntropyBackward& op);
void adamw(const UpdateBox& box, const AdamWStep& step);
void lion(const UpdateBox& box, const LionStep& step);
void sgd(const UpdateBox& box, const SgdStep& step);
void read_moments(const MomentBlock& block, float* out);
void write_moments(const MomentBlock& block, float* values, uint32_t update);
void round_weights(const float* values, int64_t n, const RoundingKey& key, uint32_t index, bf16* out);
void widen_weights(const bf16* values, int64_t n, float* out);
double sum_squares(const Matrix& x);
uint64_t digest(const DigestBox& box);
float largest_finite(const Matrix& x);
void quantize_group(const Quantize& op, float largest);
void quantize_rows(const Quantize& op);
void quantize_columns(const Quantize& op);
float fp4_largest(const Fp4Band& band);
void fp4_round(const Fp4Band& band);

const KernelTable kTable = {
    .copy = copy,
    .add = add,
    .scaled_copy = scaled_copy,
    .add_times = add_times,
    .combine_rows = combine_rows,
    .tree_sum = tree_sum,
    .sum_parts = sum_parts,
    .add_rounded = add_rounded,
    .scaled_add = scaled_add,
    .norm_forward = norm_forward,
    .norm_apply = norm_apply,
    .norm_backward = norm_backward,
    .group_norm_sums = group_norm_sums,
    .group_norm_apply = group_norm_apply,
    .group_norm_dots = group_norm_dots,
    .group_norm_backward = group_norm_backward,
    .column_sums = column_sums,
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .gated_forward = gated_forward,
    .gated_backward = gated_backward,
    .sigmoid_gate_forward = sigmoid_gate_forward,
    .sigmoid_gate_backward = sigmoid_gate_backward,
    .rope = rope,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .head_scalar_sums = head_scalar_sums,
    .attention_scratch_floats = attention_scratch_floats,
    .form_logits = form_logits,
    .cross_entropy_stats = cross_entropy_stats,
    .cross_entropy_backward = cross_entropy_backward,
    .adamw = adamw,
    .lion = lion,
    .sgd = sgd,
    .read_moments = read_moments,
    .write_moments = write_moments,
    .round_weights = round_weights,
    .widen_weights = widen_weights,
    .sum_squares = sum_squares,
    .digest = digest,
    .largest_finite = largest_finite,
    .quantize_group = quantize_group,
    .quantize_rows = quantize_rows,
    .quantize_columns = quantize_columns,
    .fp4_largest = fp4_largest,
    .fp4_round = fp4_round,
};

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
