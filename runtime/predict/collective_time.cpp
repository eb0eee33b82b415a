#include "runtime/predict/collective_time.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "parallel/exchange_choice.h"

namespace trainctl::predict {
namespace {

/// Rounds of a collective whose latencies add up.
double rounds(int ranks) { return std::max(1.0, double(std::bit_width(unsigned(ranks - 1)))); }

/// Of NCCL's own model (src/graph/tuning.cc of 2.8 to 2.27; rings, protocol Simple): of a collective, and
/// of each step of a ring within a node and to another one.
constexpr double kRingBaseS = 8.4e-6, kRingNearS = 3.4e-6, kRingFarS = 14e-6;

double ring_latency_s(const GroupPlace& place) {
  const double nodes = std::ceil(double(place.ranks) / place.together), far = nodes - 1;
  return kRingBaseS + far * kRingFarS + (place.ranks - 1 - far) * kRingNearS;
}

}  // namespace

GroupPlace place_of_group(const ClusterModel& cluster, int ranks, int stride, int ranks_on_node) {
  const int node =
      ranks_on_node > 0 ? std::min(ranks_on_node, cluster.devices_of_node) : cluster.devices_of_node;
  // Groups of other sizes than powers of two may lie on a node, too.
  const bool within = (int64_t(ranks) - 1) * stride < node;
  return {ranks, within ? ranks : std::min(ranks, parallel::neighbours_on_node(ranks, stride, node))};
}

double group_bytes_per_s(const ClusterModel& cluster, const GroupPlace& place) {
  if (place.together >= place.ranks) return cluster.node.bytes_per_s;
  return std::min(cluster.node.bytes_per_s, place.together * cluster.fabric.bytes_per_s);
}

double collective_seconds(const ClusterModel& cluster, const GroupPlace& place, double calls, double bytes) {
  if (place.ranks <= 1) return 0;
  const bool far = place.together < place.ranks;
  const double crossings = far ? rounds((place.ranks + place.together - 1) / place.together) : 0;
  const double latency = cluster.in_rings ? ring_latency_s(place)
                                          : (place.together > 1 ? cluster.node.latency_s : 0) +
                                                crossings * cluster.fabric.latency_s;
  return calls * latency + bytes / group_bytes_per_s(cluster, place);
}

double all_to_all_seconds(const ClusterModel& cluster, const GroupPlace& place, double calls, double bytes) {
  if (place.ranks <= 1) return 0;
  const double others = place.ranks - 1, far = place.ranks - place.together;
  const double near_s = bytes * (others - far) / others / cluster.node.bytes_per_s;
  const double far_s = bytes * far / others / cluster.fabric.bytes_per_s;
  return calls * (far > 0 ? cluster.fabric.latency_s : cluster.node.latency_s) + std::max(near_s, far_s);
}

double message_seconds(const ClusterModel& cluster, int stride, int ranks_on_node, double bytes) {
  const bool near = place_of_group(cluster, 2, stride, ranks_on_node).together > 1;
  const LinkSpeed& link = near ? cluster.node : cluster.fabric;
  return link.latency_s + bytes / link.bytes_per_s;
}

std::vector<TimedExchange> timed_exchanges(const std::string& lines) {
  std::vector<TimedExchange> result;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name;
    TimedExchange one;
    if (words >> name >> one.bytes >> one.seconds && name == "exchange" && one.bytes > 0 && one.seconds > 0)
      result.push_back(one);
  }
  return result;
}

std::optional<LinkSpeed> fit_link(const std::vector<TimedExchange>& exchanges) {
  if (exchanges.size() < 2) return std::nullopt;
  double shortest = INFINITY, least = INFINITY;
  for (const TimedExchange& e : exchanges) shortest = std::min(shortest, e.seconds);
  std::optional<LinkSpeed> best;
  for (double share = 0; share <= 1; share += 0.02) {
    const double latency = share * shortest;
    double top = 0, bottom = 0, error = 0;
    for (const TimedExchange& e : exchanges) {
      top += e.bytes / e.seconds * (1 - latency / e.seconds);
      bottom += std::pow(e.bytes / e.seconds, 2);
    }
    if (top <= 0) continue;
    for (const TimedExchange& e : exchanges)
      error += std::pow(1 - (latency + e.bytes * top / bottom) / e.seconds, 2);
    if (error < least) least = error, best = {.bytes_per_s = bottom / top, .latency_s = latency};
  }
  return best;
}

}  // namespace trainctl::predict
