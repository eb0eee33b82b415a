#include "kernels/cpu/isa/table.h"

#include "kernels/cpu/isa/kernels.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

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
