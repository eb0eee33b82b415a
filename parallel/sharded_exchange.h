// What the reduction of gradients and the gathering of parameters share: who owns which part of a bucket, the
// order of the peers, and the tags of their messages.
#pragma once
#include <vector>

#include "parallel/communicator.h"
#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

/// An owner's part of some chunks, in flat order.
struct Run {
  int64_t begin = 0, count = 0;
};
/// The parts of chunks [begin, end) of the group's list, by owner. Pure.
std::vector<Run> runs_of(const GroupPlan& group, size_t begin, size_t end);

/// The dp group, of which every member makes the same exchanges in the same order.
class DpGroup {
 public:
  explicit DpGroup(Communicator& comm) : comm(comm) {}
  Communicator& comm;
  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  int take_tag() { return next_tag_ = next_tag_ % 1000 + 1; }
  /// Begins with the neighbour, so that not all send to rank 0 first.
  template <typename Each>
  void for_each_peer(Each each) const {
    for (int i = 1; i < size(); ++i) each((rank() + i) % size());
  }

 private:
  int next_tag_ = 1;
};

}  // namespace trainctl::parallel::sharding
