// GradientReduction adds the gradients of a rank with those of its dp peers, in buckets, while the backward pass
// goes on; then over tp and over the two uses of a tied embedding.
#pragma once
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "parallel/bucket_reduction.h"
#include "parallel/dp_group.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

class GradientReduction {
 public:
  /// tied_peer: see ShardedParams. All must outlive this object.
  GradientReduction(const ShardedMemory& memory, DpGroup& dp, Communicator& tp, Communicator* tied_peer,
                    kernels::Backend& backend, kernels::Stream& stream);

  /// See ShardedParams.
  void merge_lane(int use, int lane);
  void reduce(int begin, int end);
  void finish();

 private:
  void queue_ready();
  void go_on();
  bool begin_next();
  void copy_own(int g, GradientBucket bucket);
  void finish_partial();
  void finish_tied();
  float* tied_run(int g) const;
  void gather_flat(int g, void* flat, DType dtype);

  /// How far a group's reduction is.
  struct Progress {
    std::vector<GradientBucket> buckets;
    size_t ready = 0;   // chunks whose gradient is complete (a prefix)
    size_t queued = 0;  // buckets
  };
  struct Queued {
    int group = 0;
    GradientBucket bucket;
  };
  const ShardedMemory& memory_;
  DpGroup& dp_;
  Communicator& tp_;
  Communicator* const tied_peer_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  const std::unique_ptr<kernels::Stream> sums_;  // the additions, beside the backward pass
  const std::unique_ptr<kernels::Event> summed_;
  std::array<Progress, kGroups> groups_;
  std::vector<Queued> queue_;         // of this step
  size_t begun_ = 0;                  // of the queue
  std::deque<BucketReduction> ring_;  // under way, or free
  size_t next_ = 0;                   // of the ring: the next to begin, and the oldest under way
  std::vector<bool> use_complete_;
};

}  // namespace trainctl::parallel::sharding
