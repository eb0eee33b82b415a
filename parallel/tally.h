// A communicator that counts: how many messages of how many bytes to and from which peer. Over a real
// communicator it counts what that one moves. Alone it is the tally twin: one rank's end of a group whose
// other members do not exist. Nothing is moved, every wait ends at once, so that the traffic of any rank of
// any mesh is counted by running that rank's step.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace trainctl::parallel {

enum class Way : uint8_t {
  send,
  receive,
  contribute,   ///< a sum that the transport makes for `peer` (Communicator::reduce)
};
struct TrafficKey {
  std::string group;   ///< as the counting communicator was named
  Way way = Way::send;
  int peer = 0;       ///< rank in the group
  size_t bytes = 0;   ///< of one message
  auto operator<=>(const TrafficKey&) const = default;
};

/// Of device memory: what goes by way of host() is not counted, nor are messages to oneself. One thread.
struct TrafficTally {
  bool detailed = true;   ///< whether messages are listed, too: a wide group has many
  std::map<TrafficKey, uint64_t> messages;
  std::map<std::string, double> sent_bytes;   ///< what this rank gave to each group
  double sent(const std::string& group) const;
  void clear();
};

/// Counts into `tally`, which must outlive the result and what is split from it. `group` names it, and
/// children by their names: group_of(child's name).
using GroupNames = std::string (*)(const std::string& name);
std::unique_ptr<Communicator> make_counting_communicator(std::unique_ptr<Communicator> real,
                                                         GroupNames group_of, TrafficTally& tally);

/// The twin of rank `rank` of `size`. adds: it makes sums by itself (Communicator::reduces). It cannot be
/// split.
std::unique_ptr<Communicator> make_tally_communicator(const std::string& group, int rank, int size,
                                                      TrafficTally& tally, bool adds = false);

}  // namespace trainctl::parallel
