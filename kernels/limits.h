// Limits of op arguments.
#pragma once
#include <cstddef>

namespace trainctl::kernels {

/// The largest number of inputs of one TreeSum.
constexpr size_t kTreeSumInputs = 2048;

}  // namespace trainctl::kernels
