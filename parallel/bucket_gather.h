// BucketGather brings the compute copies of one bucket of parameters from their owners to all ranks of the dp
// group by recursive doubling, the mirror of the halving (parallel/halving.h): in log2(n) messages a rank, of
// which the largest stay between neighbours. It uses a buffer that is used again for the next bucket.
#pragma once
#include <vector>

#include "parallel/dp_group.h"
#include "parallel/gradient_buckets.h"
#include "parallel/halving.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

/// All ranks of the group begin the same buckets in the same order. One thread.
class BucketGather {
 public:
  /// slot: of the ring's buffers. moves: the stream of the copies. All must outlive this object.
  BucketGather(const ShardedMemory& memory, int slot, DpGroup& dp, kernels::Backend& backend,
               kernels::Stream& moves);

  bool is_under_way() const { return group_ >= 0; }
  /// Starts to send the own compute copies, which must be complete on the stream of the copies. The bucket
  /// before must have ended.
  void begin(int group, GradientBucket bucket, kernels::Event& ended);
  /// Goes on as far as it can without a wait.
  void poll();
  /// Waits until the copies to the weights are enqueued; then the event given to begin() is recorded.
  void finish();

 private:
  /// Copies the chunks in the buffer that this rank owns (or that it does not own) from (or to) the weights.
  void copy_chunks(bool own);
  void start_round();
  void end_round();
  char* place(int at) const {
    return reinterpret_cast<char*>(memory_.ring_bucket(slot_)) + size_t(begins_[size_t(at)]) * element_;
  }
  size_t bytes(Places p) const {
    return size_t(begins_[size_t(p.end)] - begins_[size_t(p.begin)]) * element_;
  }

  const ShardedMemory& memory_;
  const int slot_;
  DpGroup& dp_;
  kernels::Backend& backend_;
  kernels::Stream& moves_;
  const std::vector<HalvingRound> rounds_;  // from the last to the first

  int group_ = -1;  // of the bucket under way; -1: none
  GradientBucket bucket_;
  kernels::Event* ended_ = nullptr;
  size_t element_ = 0;                  // bytes
  std::vector<int64_t> begins_, next_;  // elements before each place in the buffer; next_: while copying
  size_t rounds_left_ = 0;
  int tag_ = 0;
  Ticket ticket_;
};

}  // namespace trainctl::parallel::sharding
