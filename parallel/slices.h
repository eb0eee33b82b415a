// The direct exchange, of slices: how n ranks, any number, reduce a vector of which each owns a part, in two
// rounds. Whatever the parts are, the vector is cut into n equal slices. In the first round every rank sends
// slice r to rank r, which adds what comes; in the second the sums go to their owners. So each rank sends
// about (n+1)/n of the vector for every sum that it brings, and no rank needs memory for more than a slice
// from each. The gather is the mirror: an owner deals its part out to the slices' ranks, and each sends its
// slice to all.
#pragma once
#include <cstdint>
#include <vector>

#include "parallel/buckets.h"
#include "parallel/lanes.h"

namespace trainctl::parallel::sharding {

/// Slice `rank` of `elements`; all together are the whole vector, in order. A slice begins at a multiple of
/// 16 elements.
Elements slice_of(int64_t elements, int rank, int ranks);
/// No slice of so many elements, or of fewer, has more.
int64_t most_of_a_slice(int64_t elements, int ranks);

/// One addition of two sums, of those in a list: sums[into] += sums[from]. The left subtree is `into`.
struct Addition {
  int into = 0, from = 0;
};
/// The additions of the tree over all lanes within neighbouring subtrees' sums, given in order, and which of
/// the sums are left: the first alone where they are the whole tree.
struct TreeAdditions {
  std::vector<Addition> additions;
  std::vector<int> left;
};
TreeAdditions additions_of(const std::vector<LaneRun>& subtrees);

}  // namespace trainctl::parallel::sharding
