// What the reduction of gradients and the gathering of parameters share: the dp group and the tags of its
// messages.
#pragma once
#include <utility>

#include "parallel/communicator.h"

namespace trainctl::parallel::sharding {

/// What a DpGroup is used for. Buckets of both may be under way at one time and begin in another order on
/// each rank, so that they have tags of their own.
enum class DpTags { reductions, gathers };

/// The dp group. Every member takes the same tags in the same order.
class DpGroup {
 public:
  DpGroup(Communicator& comm, DpTags tags)
      : comm(comm),
        first_tag_(tags == DpTags::reductions ? kFirstTag : kMiddleTag),
        last_tag_(tags == DpTags::reductions ? kMiddleTag - 1 : kLastTag) {}
  Communicator& comm;
  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  /// A bucket's rounds begin at different times on different ranks, so that its tag must be its own. Those
  /// below kFirstTag are left to collectives of the group.
  int take_tag() { return std::exchange(next_tag_, next_tag_ == last_tag_ ? first_tag_ : next_tag_ + 1); }

 private:
  static constexpr int kFirstTag = 16, kMiddleTag = 512, kLastTag = 1023;
  const int first_tag_, last_tag_;
  int next_tag_ = first_tag_;
};

}  // namespace trainctl::parallel::sharding
