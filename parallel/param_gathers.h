// ParamGathers all-gathers updated weights from their owners during the next forward pass (ZeRO-1 and ZeRO-2). They
// travel in buckets, through the ring of buffers that gradients use later in the step.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "parallel/bucket_gather.h"
#include "parallel/lane_group.h"
#include "parallel/sharded_memory.h"
#include "parallel/weight_gathers.h"

namespace trainctl::parallel::sharding {

/// Chunks of a group, exchanged together.
struct GatherBucket {
  int group = 0;
  Bucket chunks;
  int first_use = 0;  ///< the least that has a chunk in it
};
/// The buckets of these groups, in the order in which a forward pass needs them. Pure.
std::vector<GatherBucket> gather_buckets(const Layout& layout, const std::vector<int>& groups);

class ParamGathers final : public WeightGathers {
 public:
  /// All must outlive this object.
  ParamGathers(const ShardedMemory& memory, LaneGroups& lines, kernels::Backend& backend,
               kernels::Stream& stream);

  void weights_changed() override;
  bool all_awaited() const override { return awaited_ == gathers_.size(); }
  void gather(int begin, int end) override;
  void await(int, int end) override { await_before(end); }
  void finish() override;
  void go_on() override;

 private:
  /// Of uses [0, end).
  void await_before(int end);
  BucketGather& slot_of(size_t gather) { return ring_[gather % ring_.size()]; }
  bool may_begin() const;

  struct Gather {
    GatherBucket bucket;
    std::unique_ptr<kernels::Event> ended;
  };
  const bool waits_on_device_;
  kernels::Stream& stream_;
  std::unique_ptr<kernels::Stream> moves_;  // the copies, during the forward pass; null: there are none
  const std::unique_ptr<kernels::Event> changed_;
  std::vector<Gather> gathers_;  // of all that AdamW does not write on every rank
  std::deque<BucketGather> ring_;
  // Of gathers_, in order: those that may begin, have begun, have ended and are waited for by the stream.
  size_t allowed_ = 0, begun_ = 0, ended_ = 0, awaited_ = 0;
};

}  // namespace trainctl::parallel::sharding
