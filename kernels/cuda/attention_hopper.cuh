// Attention by Hopper's warpgroup products (compute 9.0): bf16, head dimensions 64 and 128, operands on 16
// bytes. Its kernels choose the rows of a block, and how many rows its threads copy at once; the caller makes
// the arguments for these two.
#pragma once
#include <functional>

#include "kernels/cuda/attention_common.cuh"

namespace trainctl::kernels::cuda {

constexpr bool has_warpgroup_products(int compute) { return compute == 90; }

using HopperForward = std::function<ForwardArguments<bf16_t>(int rows, int rows_at_once)>;
struct HopperBackward {
  std::function<BackwardArguments<bf16_t>(int rows, int rows_at_once)> by_keys, by_queries;
};

void hopper_forward(const Queue& queue, int dim, const HopperForward& arguments);
void hopper_backward(const Queue& queue, int dim, const HopperBackward& arguments);

}  // namespace trainctl::kernels::cuda
