// GradientReduction adds the gradients of a rank with those of the other ranks with lanes, in buckets, while
// the backward pass goes on; then the uses of a parameter, and the sums along other axes.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "parallel/bucket_reduction.h"
#include "parallel/lane_group.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

class GradientReduction {
 public:
  /// lines: for reductions, of the memory's plan. All must outlive this object.
  GradientReduction(const ShardedMemory& memory, LaneGroups& lines, const AxisGroups& axes,
                    kernels::Backend& backend, kernels::Stream& stream);

  /// See ShardedParams.
  void merge_lane(int use, int lane);
  void claim(int begin, int end);
  void reduce(int begin, int end);
  void go_on();
  void finish();

 private:
  /// How far a group's reduction is.
  struct Progress {
    size_t ready = 0;   // chunks whose gradient is complete (a prefix); not used where lanes are reduced
    size_t queued = 0;  // buckets
  };
  struct Queued {
    int group = 0;
    Bucket bucket;
    int number = 0;  // of its chunks' reductions in this step
  };
  struct Slot {
    template <class... Args>
    explicit Slot(Args&&... args) : reduction(args...) {}
    Queued queued;  // the bucket under way in it
    BucketReduction reduction;
  };
  /// Of a place in which a part has its gradients, or parts in turn: the last bucket of those that are there.
  struct LastBucket {
    size_t number = 0;  // of this step's buckets, counted from 1; 0: none
    size_t slot = 0;    // of the ring, once it has begun
  };

  void queue_ready();
  void queue_uses(int begin, int end, int number);
  bool begin_next();
  void finish_oldest();
  void end_oldest();
  void end_complete();
  bool may_write(size_t i);
  void copy_own(const Queued& queued);
  void add_to_earlier(const Queued& queued, kernels::Stream& stream);
  void add_uses();
  void add_along_axes(int g);
  void gather_sums(int g);
  LaneGroup& line_of(int g) const { return lines_[size_t(memory_.group(g).line)]; }
  size_t place_of(int use) const;
  /// Bucket `i` of those under way, 0 is the oldest.
  Slot& slot_of(size_t i) { return ring_[(oldest_ + i) % ring_.size()]; }

  const ShardedMemory& memory_;
  LaneGroups& lines_;
  const AxisGroups& axes_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  // The additions, during the backward pass: of each slot of the ring, so that a bucket is copied while the
  // one before travels; one where lanes are reduced. None: nothing is exchanged.
  std::vector<std::unique_ptr<kernels::Stream>> sums_;
  const std::unique_ptr<kernels::Event> summed_;
  std::vector<Progress> groups_;
  std::deque<Queued> queue_;  // of this step, not begun yet
  size_t queued_before_ = 0;  // buckets of this step that have begun
  std::vector<LastBucket> last_of_place_;
  size_t last_slot_ = 0;  // of the ring: that of the bucket that was begun last
  std::deque<Slot> ring_;
  size_t oldest_ = 0, under_way_ = 0;  // of the ring: buckets that have begun and are not added yet
  std::vector<int> reductions_of_;     // [use] in this step
};

}  // namespace trainctl::parallel::sharding
