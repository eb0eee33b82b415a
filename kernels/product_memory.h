// The memory that the CPU backend takes for products which it cuts in k, so that all threads have work.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trainctl::kernels {

/// The partial sums of the products of a weight [n, k] with `rows` rows, forward and backward, whichever has
/// most. A backend has room for one product at a time. Pure.
size_t partial_sum_bytes(int64_t rows, int64_t n, int64_t k);

}  // namespace trainctl::kernels
