// Limits of op arguments.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trainctl::kernels {

/// The largest number of inputs of one TreeSum.
constexpr size_t kTreeSumInputs = 2048;
/// The largest head_dim of attention on GPUs.
constexpr int64_t kMostHeadDim = 256;

}  // namespace trainctl::kernels
