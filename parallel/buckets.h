// Where the owners' parts of a bucket lie in the buffer through which it goes. Pure.
#pragma once
#include <vector>

#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

/// Elements [begin, end) of a buffer.
struct Elements {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
/// Empty ones have no meaning but their count of 0.
Elements intersection(Elements a, Elements b);

/// A bucket in a buffer: the parts of the owners one after another, each owner's chunks in the order of the
/// list. Under Exchange::halving the parts are in the order of halving_place, else in that of the ranks.
class BucketPlaces {
 public:
  explicit BucketPlaces(int ranks);
  void lay_out(const GroupPlan& group, Bucket bucket);
  Exchange exchange() const { return bucket_.exchange; }

  Elements part(int owner) const { return places(place_of(owner), place_of(owner) + 1); }
  /// Parts at places [first, last) of the halving, together.
  Elements places(int first, int last) const { return {begins_[size_t(first)], begins_[size_t(last)]}; }
  int64_t count() const { return begins_.back(); }
  /// Calls each(chunk, element of the buffer at which it begins) for the chunks of the bucket.
  template <class Each>
  void for_each_chunk(Each each) {
    next_ = begins_;
    for (size_t i = bucket_.begin; i < bucket_.end; ++i) {
      const FlatChunk& chunk = group_->chunks[i];
      int64_t& at = next_[size_t(place_of(chunk.owner))];
      each(chunk, at);
      at += chunk.where.global.count();
    }
  }

 private:
  int place_of(int owner) const;

  const int ranks_;
  const GroupPlan* group_ = nullptr;
  Bucket bucket_;
  std::vector<int64_t> begins_,
      next_;  // [ranks + 1]: elements before each place; next_: while chunks are visited
};

}  // namespace trainctl::parallel::sharding
