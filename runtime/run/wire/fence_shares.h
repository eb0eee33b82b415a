// FenceShares keeps this node's shares of the PMIx fences of one epoch (MPI_Init, MPI_Finalize), numbered
// from 1.
//
// A supervisor may die after it has received the shares of some nodes, or has sent the answer to some nodes.
// The next supervisor needs the shares of all nodes again, also of nodes that already have the answer. So a
// node keeps a share until the next fence is answered: of two nodes, one is at most one fence ahead of the
// other. Used by one thread.
#pragma once
#include <deque>

#include "runtime/base/ensure.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class FenceShares {
 public:
  /// Numbers and keeps the share of a fence that the ranks of this node have entered.
  void add(wire::Message& share) {
    share.number = ++entered_;
    kept_.push_back(share);
  }
  /// Call when the answer to fence `number` arrives. Returns true if the ranks wait for it, false if they
  /// have had it.
  bool answer(int64_t number) {
    if (number != entered_ || number == answered_) return false;
    answered_ = number;
    ENSURE(!kept_.empty() && kept_.back().number == number);
    while (kept_.front().number < number) kept_.pop_front();
    return true;
  }
  /// The shares to send to a new supervisor, oldest first.
  const std::deque<wire::Message>& kept() const { return kept_; }

 private:
  int64_t entered_ = 0, answered_ = 0;
  std::deque<wire::Message> kept_;
};

}  // namespace trainctl
