// Attention by Hopper's warpgroup products (compute 9.0): bf16, head dimensions 64 and 128, operands on 16
// bytes, scale > 0 (fits_tensor_cores). The formulas and what is written are those of AttentionForward and
// AttentionBackward in ops.h; tiles: attention_tiles.h, "warpgroups".
#pragma once
#include "kernels/cuda/attention_common.cuh"

namespace trainctl::kernels::cuda {

/// Writes out [B*T, heads * dim] (bf16) and lse [B*T, heads] (f32). `a`: its schedule counts tiles of
/// warpgroup_rows(forward, dim) queries, its views step warpgroup_rows_at_once(forward, dim) rows. Errors:
/// those of launch().
void hopper_forward(const Queue& queue, int dim, const ForwardArguments<bf16_t>& a);
/// Writes dk and dv [B*T, kv heads * dim] with `by_keys`, then dq [B*T, heads * dim] with `by_queries`
/// (bf16). Their schedules and views are for the pass of that name, as above. Errors: those of launch().
void hopper_backward(const Queue& queue, int dim, const BackwardArguments<bf16_t>& by_keys,
                     const BackwardArguments<bf16_t>& by_queries);

}  // namespace trainctl::kernels::cuda
