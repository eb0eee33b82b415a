#include "parallel/buckets.h"

#include <algorithm>

#include "parallel/halving.h"

namespace trainctl::parallel::sharding {

Elements intersection(Elements a, Elements b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

BucketPlaces::BucketPlaces(int ranks) : ranks_(ranks) {
  begins_.resize(size_t(ranks) + 1);
  next_.reserve(size_t(ranks) + 1);
}

int BucketPlaces::place_of(int owner) const {
  return exchange() == Exchange::halving ? halving_place(owner, ranks_) : owner;
}

void BucketPlaces::lay_out(const GroupPlan& group, Bucket bucket) {
  group_ = &group;
  bucket_ = bucket;
  std::fill(begins_.begin(), begins_.end(), 0);
  for (size_t i = bucket.begin; i < bucket.end; ++i)
    begins_[size_t(place_of(group.chunks[i].owner)) + 1] += group.chunks[i].where.global.count();
  for (size_t place = 0; place < size_t(ranks_); ++place) begins_[place + 1] += begins_[place];
}

}  // namespace trainctl::parallel::sharding
