// Communicators that count messages by peer and size. The counting communicator wraps a real one and counts
// its messages. The tally communicator (the twin) is one rank's end of a group whose other members do not
// exist: it moves nothing, and every wait ends at once. So the traffic of any rank of any mesh can be counted
// by running that rank's step.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "parallel/mesh.h"
#include "runtime/base/words.h"

namespace trainctl::parallel {

/// What a group of ranks exchanges in a step.
enum class TrafficGroup : uint8_t {
  tensor,
  data,
  activations,
  gradients,  ///< of activations, between stages
  tied_embedding,
  context,  ///< keys and values, and their gradients
  experts,  ///< rows of tokens, and their gradients
  other     ///< not part of a step's traffic
};

}  // namespace trainctl::parallel

template <>
struct trainctl::Words<trainctl::parallel::TrafficGroup> {
  static constexpr std::string_view list[] = {"tensor",         "data",    "activations", "gradients",
                                              "tied embedding", "context", "experts",     "other"};
};

namespace trainctl::parallel {

constexpr TrafficGroup traffic_of(Axis axis) {
  return axis == Axis::tp   ? TrafficGroup::tensor
         : axis == Axis::cp ? TrafficGroup::context
         : axis == Axis::dp ? TrafficGroup::data
                            : TrafficGroup::other;
}

enum class Way : uint8_t {
  send,
  receive,
  contribute,   ///< a sum that the transport makes for `peer` (Communicator::reduce)
};
struct TrafficKey {
  TrafficGroup group = TrafficGroup::other;   ///< of the counting communicator
  Way way = Way::send;
  int peer = 0;       ///< rank in the group
  size_t bytes = 0;   ///< of one message
  auto operator<=>(const TrafficKey&) const = default;
};

/// Counts of messages of device memory. Messages over host() and to the own rank are not counted. One thread.
struct TrafficTally {
  bool detailed = true;   ///< false: count only sent_bytes, because a large group has many messages
  std::map<TrafficKey, uint64_t> messages;
  std::map<TrafficGroup, double> sent_bytes;   ///< bytes that this rank sent in each group
  double sent(TrafficGroup group) const;
  void clear();
};

/// Wraps `real` and counts into `tally`, which must outlive the result and all its subgroups.
/// `group_of` gives the group for the name of a communicator.
using GroupOfName = TrafficGroup (*)(const std::string& name);
std::unique_ptr<Communicator> make_counting_communicator(std::unique_ptr<Communicator> real,
                                                         GroupOfName group_of, TrafficTally& tally);

/// The tally twin for rank `rank` of `size`. `adds`: Communicator::reduces. Its subgroups count as `group`,
/// too; their world ranks are not known.
std::unique_ptr<Communicator> make_tally_communicator(TrafficGroup group, int rank, int size,
                                                      TrafficTally& tally, bool adds = false);

}  // namespace trainctl::parallel
