// The time of messages among the ranks of a group, from where the ranks are. Pure.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/predict/cluster.h"

namespace trainctl::predict {

/// Where the ranks of a group are: world ranks `stride` apart; `together` of them, a power of two, on a node.
struct GroupPlace {
  int ranks = 1;
  int together = 1;
};
GroupPlace place_of_group(const ClusterModel& cluster, int ranks, int stride, int ranks_on_node);

/// Bytes a second at which each rank of a group sends in a collective that crosses each link once (a ring;
/// recursive halving; both of which send (ranks - 1) / ranks of a buffer). Of a group over several nodes each
/// node's ranks share the network cards of all its ranks: where `together` ranks of a group are on a node, a
/// byte in `together` crosses a card.
double group_bytes_per_s(const ClusterModel& cluster, const GroupPlace& place);

/// The time from the first message to the last of `calls` collectives, one behind the other, in which this
/// rank sends `bytes` altogether.
double collective_seconds(const ClusterModel& cluster, const GroupPlace& place, double calls, double bytes);

/// Every rank sends every other one its own part: of `bytes` that this rank sends, those to other nodes go
/// over its network card, at the same time as the others over the node's links.
double all_to_all_seconds(const ClusterModel& cluster, const GroupPlace& place, double calls, double bytes);

/// One message to a neighbour `stride` world ranks away.
double message_seconds(const ClusterModel& cluster, int stride, int ranks_on_node, double bytes);

/// An exchange of two ranks, each of which sends `bytes`.
struct TimedExchange {
  double bytes = 0, seconds = 0;
};
/// Those of lines "exchange BYTES SECONDS"; other lines are left out.
std::vector<TimedExchange> timed_exchanges(const std::string& lines);
/// Latency and rate with the least relative errors; nullopt: fewer than two sizes.
std::optional<LinkSpeed> fit_link(const std::vector<TimedExchange>& exchanges);

}  // namespace trainctl::predict
