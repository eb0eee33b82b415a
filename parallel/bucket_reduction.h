// BucketReduction adds one bucket of gradients over the dp group by recursive halving, in buffers that are
// used again for the next bucket. Each rank ends with the sums of its own chunks.
#pragma once
#include <memory>
#include <vector>

#include "parallel/dp_group.h"
#include "parallel/gradient_buckets.h"
#include "parallel/halving.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

/// All ranks of the group begin the same buckets in the same order. One thread.
class BucketReduction {
 public:
  /// slot: of the ring's buffers. sums: the stream of the additions. All must outlive this object.
  BucketReduction(const ShardedMemory& memory, int slot, DpGroup& dp, kernels::Backend& backend,
                  kernels::Stream& stream, kernels::Stream& sums);

  bool is_under_way() const { return group_ >= 0; }
  /// Copies the bucket's gradients, which must be complete on `stream`, and starts to exchange them. The
  /// bucket before must have ended.
  void begin(int group, GradientBucket bucket);
  /// Goes on as far as it can without a wait.
  void poll();
  /// Waits until the own sums are enqueued on the stream of the additions.
  void finish();

 private:
  void pack(GradientBucket bucket);
  bool adds_in_transport() const;
  void reduce_in_transport();
  void start_round();
  void end_round();
  float* place(int at) const { return memory_.ring_bucket(slot_) + begins_[size_t(at)]; }
  int64_t elements(Places p) const { return begins_[size_t(p.end)] - begins_[size_t(p.begin)]; }

  const ShardedMemory& memory_;
  const int slot_;
  DpGroup& dp_;
  kernels::Backend& backend_;
  kernels::Stream &stream_, &sums_;
  const std::vector<HalvingRound> rounds_;
  const std::unique_ptr<kernels::Event> complete_;   // the gradients of the bucket, on stream_

  int group_ = -1;                      // of the bucket under way; -1: none
  int64_t own_begin_ = 0;               // of the rank's own part, in flat order
  std::vector<int64_t> begins_, next_;  // elements before each place in the buffer; next_: while packing
  size_t round_ = 0;
  int tag_ = 0;
  Ticket ticket_;
};

}  // namespace trainctl::parallel::sharding
