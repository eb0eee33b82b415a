#include "parallel/buckets.h"

#include <algorithm>
#include <bit>

#include "parallel/halving.h"

namespace trainctl::parallel::sharding {

std::vector<Bucket> buckets_of(const GroupPlan& group, int64_t bucket_elements) {
  std::vector<Bucket> buckets;
  int64_t elements = 0;
  for (size_t i = 0; i < group.chunks.size(); ++i) {
    const int64_t count = group.chunks[i].where.global.count();
    if (buckets.empty() || elements + count > bucket_elements ||
        group.chunks[i].part != group.chunks[i - 1].part) {
      buckets.push_back({i, i});
      elements = 0;
    }
    buckets.back().end = i + 1;
    elements += count;
  }
  return buckets;
}

Elements intersection(Elements a, Elements b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Exchange exchange_among(int ranks) {
  return std::has_single_bit(unsigned(ranks)) ? Exchange::halving : Exchange::slices;
}

BucketPlaces::BucketPlaces(int ranks) : ranks_(ranks), exchange_(exchange_among(ranks)) {
  begins_.resize(size_t(ranks) + 1);
  next_.reserve(size_t(ranks) + 1);
}

int BucketPlaces::place_of(int owner) const {
  return exchange_ == Exchange::halving ? halving_place(owner, ranks_) : owner;
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
