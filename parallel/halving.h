// Recursive halving: how n ranks (a power of two) reduce a vector of which each owns a part, in log2(n)
// messages a rank. In round k a rank and the rank that differs from it in bit k each send the other what it
// may own, and add what comes. So neighbours are added first: the sums form the balanced binary tree over the
// ranks, a rank sends (n-1)/n of the vector, and of n neighbours on a node only the sum leaves it.
//
// The parts lie in bit-reversed order of their owners, so that what a rank keeps in each round is contiguous.
// Source: R. Rabenseifner, Optimization of Collective Reduction Operations, ICCS 2004; order: the tree of
// lanes.
#pragma once
#include <vector>

namespace trainctl::parallel {

/// The place of an owner's part: the bits of its rank in reverse.
int halving_place(int owner, int ranks);

/// Places [begin, end).
struct Places {
  int begin = 0, end = 0;
};

struct HalvingRound {
  int peer = 0;
  bool peer_is_first = false;  ///< in the tree the peer's sum is the left one
  Places keep, give;           ///< what this rank goes on with, and what its peer does
};
/// The rounds of `rank`, in order; the last one keeps its own part. `ranks`: a power of two. Pure.
std::vector<HalvingRound> halving_rounds(int rank, int ranks);

}  // namespace trainctl::parallel
