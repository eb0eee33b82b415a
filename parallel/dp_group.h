// What the reduction of gradients and the gathering of parameters share: the dp group and the tags of its
// messages.
#pragma once
#include <utility>

#include "parallel/communicator.h"

namespace trainctl::parallel::sharding {

/// The dp group. Every member takes the same tags in the same order.
class DpGroup {
 public:
  explicit DpGroup(Communicator& comm) : comm(comm) {}
  Communicator& comm;
  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  /// A bucket's rounds begin at different times on different ranks, so that its tag must be its own. Those
  /// below kFirstTag are left to collectives of the group.
  int take_tag() { return std::exchange(next_tag_, next_tag_ == kLastTag ? kFirstTag : next_tag_ + 1); }

 private:
  static constexpr int kFirstTag = 16, kLastTag = 1023;
  int next_tag_ = kFirstTag;
};

}  // namespace trainctl::parallel::sharding
