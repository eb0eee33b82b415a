// BucketGather brings the compute copies of one bucket of parameters from their owners to all ranks of its
// line, in the rounds of parallel/gather_rounds.h. It uses a buffer that is used again for the next bucket.
#pragma once
#include <deque>
#include <vector>

#include "parallel/buckets.h"
#include "parallel/gather_rounds.h"
#include "parallel/lane_group.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

/// All ranks of the group begin the same buckets in the same order. One thread.
class BucketGather {
 public:
  /// slot: of the ring's buffers. moves: the stream of the copies. All must outlive this object.
  BucketGather(const ShardedMemory& memory, int slot, LaneGroups& lines, kernels::Backend& backend,
               kernels::Stream& moves);

  bool is_under_way() const { return group_ >= 0; }
  /// Starts to send the own compute copies, which must be complete on the stream of the copies. The bucket
  /// before must have ended.
  void begin(int group, Bucket bucket, kernels::Event& ended);
  /// Goes on as far as it can without a wait.
  void poll();
  /// Waits until the copies to the weights are enqueued; then the event given to begin() is recorded.
  void finish();

 private:
  /// Copies this rank's own chunks into the buffer; those that its weights do not have yet out of it.
  void copy_in();
  void copy_out();
  kernels::Matrix in_buffer(const FlatChunk& c, int64_t at) const;
  void start_round();
  void end_round();
  void finish_exchange();
  char* buffer() const { return memory_.gather_bucket(slot_); }

  const ShardedMemory& memory_;
  const int slot_;
  LaneGroups& lines_;
  kernels::Backend& backend_;
  kernels::Stream& moves_;

  int group_ = -1;  // of the bucket under way; -1: none
  kernels::Event* ended_ = nullptr;
  size_t element_ = 0;  // bytes
  LaneGroup* line_ = nullptr;
  std::deque<BucketPlaces> places_of_lines_;
  BucketPlaces* places_ = nullptr;
  int round_ = 0;
  int tag_ = 0;
  std::vector<GatherMessage> messages_;  // of a round
  std::vector<Transfer> transfers_;
  Ticket ticket_;
};

}  // namespace trainctl::parallel::sharding
