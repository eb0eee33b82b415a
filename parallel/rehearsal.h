// A communicator that can be switched off. While a rank rehearses a step alone, exchanges end at once and
// move nothing, so receive buffers keep their contents. Otherwise all calls go to the wrapped communicator.
//
// What it rehearsed with each peer is kept as a digest. Two ranks compare theirs when they are connected,
// because a transport without sizes (NCCL) would hang, or overwrite memory, where their programs differ.
#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include "parallel/communicator.h"

namespace trainctl::parallel {

/// Messages one way, in their order: that of the exchanges, and of tags within one.
struct MessageDigest {
  uint64_t count = 0, bytes = 0, hash = 0;
  void add(uint64_t size);
  bool operator==(const MessageDigest&) const = default;
};

/// What was rehearsed with one member.
struct RehearsedMessages {
  MessageDigest sent, received;
};

/// Of each member, without the own rank.
using Rehearsed = std::map<int, RehearsedMessages>;

/// Wraps `communicator`. `rehearsing` must outlive the result and may change only while no exchange is
/// pending. `rehearsed` must outlive it, too.
/// The members need not rehearse at the same time. But a caller that numbers its exchanges must have the same
/// numbers on every member after the rehearsal.
///
/// connect() of the result compares what each of `peers` and this rank rehearsed with each other.
/// Error(kPreflight) if they differ: it names the group, both ranks and what each of them would move.
std::unique_ptr<Communicator> make_rehearsable(std::unique_ptr<Communicator> communicator,
                                               const bool& rehearsing, Rehearsed& rehearsed);

}  // namespace trainctl::parallel
