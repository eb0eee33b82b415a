// Permutation: a permutation of 0..n-1 that is computed and not stored. It shuffles the samples of an epoch.
#pragma once
#include <cstdint>

#include "runtime/base/philox.h"

namespace trainctl::data {

/// A bijection on [0, n) that depends on (seed, stream). Each value costs a few hundred nanoseconds for every
/// n.
///
/// It is a Feistel network with Philox as round function, over the smallest domain of 2^b >= n values. A
/// value outside [0, n) is mapped again until it is inside (cycle walking); that takes fewer than two rounds
/// on average. Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
class Permutation {
 public:
  /// n >= 1.
  Permutation(uint64_t n, uint64_t seed, uint64_t stream);
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t once(uint64_t x) const;

  uint64_t n_;
  int low_bits_, high_bits_;
  Philox philox_;
};

}  // namespace trainctl::data
