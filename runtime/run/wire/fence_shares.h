// This node's shares of the fences that the ranks of an epoch meet in (MPI_Init, MPI_Finalize), numbered from 1.
//
// A supervisor may die after it has taken the shares of some nodes, or sent the answer to some of them. The next one must get what is
// missing, from nodes that still wait and from nodes that do not, so a share is kept until the fence after it is answered: a node
// that was answered can be at most one fence ahead of another. Used by one thread.
#pragma once
#include <deque>

#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class FenceShares {
 public:
  /// Numbers the share of a fence that the ranks here have entered, and keeps it.
  void add(wire::Message& share) {
    share.number = ++entered_;
    kept_.push_back(share);
  }
  /// The answer to fence `number` has come. True if the ranks here wait for it; false for one that they have had.
  bool answer(int64_t number) {
    if (number != entered_ || number == answered_) return false;
    answered_ = number;
    while (kept_.front().number < number) kept_.pop_front();
    return true;
  }
  /// What a new supervisor must get, oldest first.
  const std::deque<wire::Message>& kept() const { return kept_; }

 private:
  int64_t entered_ = 0, answered_ = 0;
  std::deque<wire::Message> kept_;
};

}  // namespace trainctl
