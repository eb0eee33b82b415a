// ReductionRounds is how packed buckets of gradients are reduced: their messages and additions, round by
// round. There is one for each Exchange; both add in the order of the tree over all lanes.
#pragma once
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "parallel/buckets.h"
#include "parallel/communicator.h"
#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

/// A bucket while it is reduced. The places must stay as they are until the last round.
struct PackedBucket {
  const BucketPlaces* places = nullptr;
  int time = 0;              ///< which reduction of the step it is of
  DType dtype = DType::f32;  ///< of sums and received (ShardingOptions::reduction_dtype)
  char* sums = nullptr;      ///< [subtrees of this rank, places->count()]
  char* received = nullptr;
  /// bf16: this rank's slice, added over all ranks, of each result; not used by the halving.
  float* root = nullptr;
  /// The results, one for each subtree that the lanes make (OwnerLevels): the part that this rank owns. Not
  /// used if it owns none.
  std::vector<float*> own = {};

  /// `count` elements from element `at` on of sums or received.
  kernels::Matrix in(char* buffer, int64_t at, int64_t count) const {
    return kernels::matrix(buffer + size_t(at) * size_of(dtype), dtype, 1, count);
  }
};

class ReductionRounds {
 public:
  virtual ~ReductionRounds() = default;
  virtual int count() const = 0;
  /// The round after whose messages the result's memory is first written.
  virtual int last_before_own() const = 0;
  /// Appends what this rank sends and receives in a round, which may be nothing.
  virtual void add_messages(const PackedBucket& bucket, int round, int tag,
                            std::vector<Transfer>& messages) const = 0;
  /// Enqueues the additions that follow the messages of a round.
  virtual void add_sums(const PackedBucket& bucket, int round) = 0;
};

/// The rounds of each exchange that a bucket of a line has.
class ReductionWays {
 public:
  /// sums: the stream of the additions. It and the backend must outlive this object.
  ReductionWays(const Layout& layout, int line, kernels::Backend& backend, kernels::Stream& sums);
  ReductionRounds& of(Exchange exchange) const {
    return exchange == Exchange::halving ? *halving_ : *direct_;
  }

 private:
  std::unique_ptr<ReductionRounds> halving_, direct_;  // null: no bucket has it
};

}  // namespace trainctl::parallel::sharding
