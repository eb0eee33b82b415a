#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

// Ten rounds on halves that differ by at most a bit. Few samples get a domain of at least 2^6, as halves of one or two
// bits would reach only a few of the permutations.
constexpr int kRounds = 10, kLeastBits = 6;

constexpr uint64_t mask(int bits) { return (uint64_t(1) << bits) - 1; }

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t stream)
    : n_(n), philox_(seed, RandomPurpose::kShuffle, stream) {
  ENSURE(n >= 1 && n <= uint64_t(1) << 62, "n = {}", n);
  const int bits = std::max(kLeastBits, int(std::bit_width(n - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

uint64_t Permutation::once(uint64_t x) const {
  uint64_t low = x & mask(low_bits_), high = x >> low_bits_;
  for (int round = 0; round < kRounds; round += 2) {
    // Each half is masked by a function of the other, so the halves may differ in width and every step is
    // invertible.
    low ^= philox_.bits64(uint64_t(round) << 40 | high) & mask(low_bits_);
    high ^= philox_.bits64(uint64_t(round + 1) << 40 | low) & mask(high_bits_);
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t i) const {
  ENSURE(i < n_, "i = {}, n = {}", i, n_);
  do i = once(i);
  while (i >= n_);
  return i;
}

}  // namespace trainctl::data
