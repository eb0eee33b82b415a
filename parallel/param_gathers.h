// ParamGathers brings changed compute copies from their owners to all dp ranks, in buckets, during the next
// forward pass.
#pragma once
#include <vector>

#include "parallel/sharded_exchange.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

/// Chunks [begin, end) of a group, exchanged together.
struct GatherBucket {
  int group = 0;
  size_t begin = 0, end = 0;
  int first_use = 0;  ///< the least that has a chunk in it
};
/// The buckets of these groups, in the order in which a forward pass needs them. Pure.
std::vector<GatherBucket> gather_buckets(const Layout& layout, const std::vector<int>& groups);

class ParamGathers {
 public:
  /// All must outlive this object.
  ParamGathers(const ShardedMemory& memory, DpGroup& dp, kernels::Backend& backend, kernels::Stream& stream);

  /// The compute copies changed at their owners.
  void weights_changed() { begun_ = awaited_ = 0; }
  bool all_awaited() const { return awaited_ == gathers_.size(); }
  /// See ShardedParams.
  void gather(int begin, int end);
  void await(int end);

 private:
  Ticket exchange(const GatherBucket& bucket);

  struct Gather {
    GatherBucket bucket;
    Ticket ticket;
  };
  const ShardedMemory& memory_;
  DpGroup& dp_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::vector<Gather> gathers_;     // of all that AdamW does not write in place
  size_t begun_ = 0, awaited_ = 0;  // gathers; those in between are under way
};

}  // namespace trainctl::parallel::sharding
