// The digest of state: what an element adds to it. The sum over all elements modulo 2^64 has no order, so
// it is the same number however the elements are cut over ranks, threads and ops.
//
// For one place the function is one to one: another value there always changes a digest. That two or more
// changes leave it as it was has a chance of 2^-64. It finds faults; it does not show that a state is forged.
#pragma once
#include <cstdint>

namespace trainctl::kernels {

constexpr uint64_t kDigestStep = 0x9e3779b97f4a7c15u;  ///< of the index, from element to element
constexpr uint64_t kDigestFactor = 0xd6e8feb86659fd93u;

/// What the elements of a row have in common. `tensor`: a number of the tensor; first: the index of the row's
/// first element in it.
constexpr uint64_t digest_row(uint64_t tensor, int64_t first) {
  return tensor + uint64_t(first) * kDigestStep;
}

/// bits: of the element, as an unsigned number; column: in the row.
constexpr uint64_t digest_element(uint64_t row, int64_t column, uint64_t bits) {
  uint64_t z = (row + uint64_t(column) * kDigestStep) ^ bits;
  z = (z ^ z >> 32) * kDigestFactor;
  z = (z ^ z >> 32) * kDigestFactor;
  return z ^ z >> 32;
}

}  // namespace trainctl::kernels
