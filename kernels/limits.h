// What an op takes at most.
#pragma once
#include <cstddef>

namespace trainctl::kernels {

/// Inputs of one Backend::tree_sum.
constexpr size_t kTreeSumInputs = 2048;

}  // namespace trainctl::kernels
