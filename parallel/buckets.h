// The buckets in which gradients are reduced and parameters gathered, and where the owners' parts of a bucket
// lie in the buffer through which it goes. Pure.
#pragma once
#include <vector>

#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

/// Chunks [begin, end) of a group, exchanged together.
struct Bucket {
  size_t begin = 0, end = 0;
};
/// The buckets of a group, in the order in which gradients become ready: as many chunks of one
/// FlatChunk::part as fit into `bucket_elements`, at least one. A rank may own nothing of a bucket.
std::vector<Bucket> buckets_of(const GroupPlan& group, int64_t bucket_elements);

/// Elements [begin, end) of a buffer.
struct Elements {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
/// Empty ones have no meaning but their count of 0.
Elements intersection(Elements a, Elements b);

/// How the parts of a bucket travel between their owners and all other ranks.
enum class Exchange {
  halving,  ///< a power of two of ranks: rounds with one peer each (parallel/halving.h)
  slices    ///< any number of ranks: equal slices, each with one rank in between (parallel/slices.h)
};
Exchange exchange_among(int ranks);

/// A bucket in a buffer: the parts of the owners one after another, each owner's chunks in the order of the
/// list. Under Exchange::halving the parts are in the order of halving_place, else in that of the ranks.
class BucketPlaces {
 public:
  explicit BucketPlaces(int ranks);
  void lay_out(const GroupPlan& group, Bucket bucket);

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
  const Exchange exchange_;
  const GroupPlan* group_ = nullptr;
  Bucket bucket_;
  std::vector<int64_t> begins_,
      next_;  // [ranks + 1]: elements before each place; next_: while chunks are visited
};

}  // namespace trainctl::parallel::sharding
