// A communicator that can be switched off. While a rank rehearses a step alone, exchanges end at once and
// move nothing, so receive buffers keep their contents. Otherwise all calls go to the wrapped communicator.
#pragma once
#include <memory>
#include <set>

#include "parallel/communicator.h"

namespace trainctl::parallel {

/// Wraps `communicator`. `rehearsing` must outlive the result and may change only while no exchange is
/// pending. `peers` must outlive it, too: the members with which it has rehearsed exchanges, for connect().
/// The members need not rehearse at the same time. But a caller that numbers its exchanges must have the same
/// numbers on every member after the rehearsal.
std::unique_ptr<Communicator> make_rehearsable(std::unique_ptr<Communicator> communicator,
                                               const bool& rehearsing, std::set<int>& peers);

}  // namespace trainctl::parallel
