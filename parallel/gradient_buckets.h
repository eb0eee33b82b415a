// The buckets in which gradients are reduced, and the ring of buffers through which they go. Pure.
#pragma once
#include <vector>

#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

/// Chunks [begin, end) of a group, reduced together.
struct GradientBucket {
  size_t begin = 0, end = 0;
};
/// The buckets of a group, in the order in which gradients become ready: as many chunks as fit into
/// `bucket_elements`, at least one. A rank may own nothing of a bucket.
std::vector<GradientBucket> gradient_buckets(const GroupPlan& group, int64_t bucket_elements);

/// The elements of chunks [begin, end) before each place of the halving (parallel/halving.h): [ranks + 1],
/// the last one is the sum of all. `ranks`: a power of two.
void places_of_parts(const GroupPlan& group, GradientBucket bucket, int ranks, std::vector<int64_t>& begins);

}  // namespace trainctl::parallel::sharding
