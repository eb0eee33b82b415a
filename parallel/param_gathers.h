// ParamGathers brings changed compute copies from their owners to all dp ranks, in buckets through the ring
// of buffers that gradients use later in the step, during the next forward pass.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "parallel/bucket_gather.h"
#include "parallel/dp_group.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

/// Chunks of a group, exchanged together.
struct GatherBucket {
  int group = 0;
  Bucket chunks;
  int first_use = 0;  ///< the least that has a chunk in it
};
/// The buckets of these groups, in the order in which a forward pass needs them. Pure.
std::vector<GatherBucket> gather_buckets(const Layout& layout, const std::vector<int>& groups);

class ParamGathers {
 public:
  /// All must outlive this object.
  ParamGathers(const ShardedMemory& memory, DpGroup& dp, kernels::Backend& backend, kernels::Stream& stream);

  /// The compute copies changed at their owners, by work on the stream.
  void weights_changed();
  bool all_awaited() const { return awaited_ == gathers_.size(); }
  /// See ShardedParams.
  void gather(int begin, int end);
  void await(int end);
  void go_on();

 private:
  BucketGather& slot_of(size_t gather) { return ring_[gather % ring_.size()]; }
  bool may_begin() const;

  struct Gather {
    GatherBucket bucket;
    std::unique_ptr<kernels::Event> ended;
  };
  DpGroup& dp_;
  kernels::Stream& stream_;
  const std::unique_ptr<kernels::Stream> moves_;  // the copies, beside the forward pass
  const std::unique_ptr<kernels::Event> changed_;
  std::vector<Gather> gathers_;  // of all that AdamW does not write on every rank
  std::deque<BucketGather> ring_;
  // Of gathers_, in order: those that may begin, have begun, have ended and are waited for by the stream.
  size_t allowed_ = 0, begun_ = 0, ended_ = 0, awaited_ = 0;
};

}  // namespace trainctl::parallel::sharding
