#include "parallel/gradient_buckets.h"

#include "parallel/halving.h"

namespace trainctl::parallel::sharding {

std::vector<GradientBucket> gradient_buckets(const GroupPlan& group, int64_t bucket_elements) {
  std::vector<GradientBucket> buckets;
  int64_t elements = 0;
  for (size_t i = 0; i < group.chunks.size(); ++i) {
    const int64_t count = group.chunks[i].where.global.count();
    if (buckets.empty() || elements + count > bucket_elements) {
      buckets.push_back({i, i});
      elements = 0;
    }
    buckets.back().end = i + 1;
    elements += count;
  }
  return buckets;
}

void places_of_parts(const GroupPlan& group, GradientBucket bucket, int ranks, std::vector<int64_t>& begins) {
  begins.assign(size_t(ranks) + 1, 0);
  for (size_t i = bucket.begin; i < bucket.end; ++i)
    begins[size_t(halving_place(group.chunks[i].owner, ranks)) + 1] += group.chunks[i].where.global.count();
  for (size_t place = 0; place < size_t(ranks); ++place) begins[place + 1] += begins[place];
}

}  // namespace trainctl::parallel::sharding
