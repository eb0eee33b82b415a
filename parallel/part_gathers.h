// PartGathers brings the compute copies of one part of the model from their owners to all ranks of their
// lines, each time before the part is computed (ZeRO-3). Two parts may be under way or in use at one time:
// they have two places.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "parallel/bucket_gather.h"
#include "parallel/lane_group.h"
#include "parallel/sharded_memory.h"
#include "parallel/weight_gathers.h"

namespace trainctl::parallel::sharding {

class PartGathers final : public WeightGathers {
 public:
  /// All must outlive this object.
  PartGathers(const ShardedMemory& memory, LaneGroups& lines, kernels::Backend& backend,
              kernels::Stream& stream);

  void weights_changed() override {}   // what gather() sends is what the stream has written by then
  bool all_awaited() const override { return under_way_.empty(); }
  void gather(int begin, int end) override;
  void await(int begin, int end) override;
  void finish() override;
  void go_on() override;

 private:
  struct PartBucket {
    int group = 0;
    Bucket chunks;
  };
  struct Part {
    int begin = 0, end = 0;   // uses
    std::vector<PartBucket> buckets;
    std::unique_ptr<kernels::Event> here;
  };
  /// A part that is gathered and not waited for: how many of its buckets have begun and have ended.
  struct Gathering {
    Part* part = nullptr;
    size_t begun = 0, ended = 0;
  };
  void list_parts(const Layout& layout, kernels::Backend& backend);
  Part& part_of(int begin, int end);
  void finish_first();
  void end_complete();
  bool begin_next();
  /// Bucket `i` of those that have begun and have not ended, 0 is the oldest.
  BucketGather& slot_of(size_t i) { return ring_[(oldest_ + i) % ring_.size()]; }

  const Layout& layout_;
  kernels::Stream& stream_;
  const std::unique_ptr<kernels::Stream> moves_;  // the copies, beside the computation
  const std::unique_ptr<kernels::Event> place_free_;
  std::vector<Part> parts_;
  std::deque<Gathering> under_way_;
  std::deque<BucketGather> ring_;
  size_t oldest_ = 0, busy_ = 0;  // of the ring
};

}  // namespace trainctl::parallel::sharding
