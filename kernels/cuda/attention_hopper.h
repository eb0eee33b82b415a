// Attention by Hopper's warpgroup products (compute 9.0): bf16, head dimensions 64 and 128, operands on 16 bytes. The arguments are those of
// the other tensor-core kernels; their schedule counts tiles of kHopperRows.
#pragma once
#include "kernels/cuda/attention_common.cuh"

namespace trainctl::kernels::cuda {

constexpr int kHopperRows = 128;                   ///< queries, or keys, of a block
constexpr int kHopperThreads = 256;
/// Rows that its threads copy at once, 16 bytes each.
constexpr int hopper_rows_at_once(int dim) { return kHopperThreads / (dim / 8); }

constexpr bool has_warpgroup_products(int compute) { return compute == 90; }

void hopper_forward(const Queue& queue, int dim, const ForwardArguments<bf16_t>& a);
void hopper_backward(const Queue& queue, int dim, const BackwardArguments<bf16_t>& by_keys, const BackwardArguments<bf16_t>& by_queries);

}  // namespace trainctl::kernels::cuda
