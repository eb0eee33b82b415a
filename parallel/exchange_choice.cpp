#include "parallel/exchange_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

double seconds(const Link& link, double bytes) { return link.latency_s + bytes / link.bytes_per_s; }

}  // namespace

GroupLinks links_of_hosts() {
  return {.near = {.latency_s = 20e-6, .bytes_per_s = 3e9},
          .far = {.latency_s = 40e-6, .bytes_per_s = 2.5e9},
          .message_s = 2e-6};
}

GroupLinks links_of_gpus() {
  return {.near = {.latency_s = 12e-6, .bytes_per_s = 200e9},
          .far = {.latency_s = 25e-6, .bytes_per_s = 40e9},
          .message_s = 0.5e-6};
}

int ranks_on_node(std::span<const int> ranks_of_nodes) {
  if (ranks_of_nodes.size() <= 1) return 0;
  int first = 0, common = 0;
  for (const int ranks : ranks_of_nodes.first(ranks_of_nodes.size() - 1))
    common = std::gcd(common, first += ranks);
  return common;
}

int neighbours_on_node(int ranks, int stride, int on_node) {
  ENSURE(ranks >= 1 && stride >= 1 && on_node >= 0, "{} ranks, {} apart, {} on a node", ranks, stride,
         on_node);
  const int all = int(std::bit_floor(unsigned(ranks)));
  if (on_node == 0) return all;
  if (on_node % stride != 0) return 1;
  const unsigned lines = unsigned(on_node / stride);
  return std::min(all, int(lines & (0u - lines)));
}

double halving_seconds(BucketSize bucket, int ranks, const GroupLinks& links) {
  double total = 0, half = bucket.bytes / 2;
  for (int bit = 1; bit < ranks; bit *= 2, half /= 2)
    total += seconds(bit < links.neighbours ? links.near : links.far, std::max(half, bucket.largest_chunk)) +
             2 * links.message_s;
  return total;
}

double direct_seconds(BucketSize bucket, int ranks, const GroupLinks& links) {
  if (ranks == 1) return 0;
  const double others = ranks - 1, near = std::min(links.neighbours, ranks) - 1, far = others - near;
  const double slice = bucket.bytes / ranks;
  const Link& farthest = far > 0 ? links.far : links.near;
  const double deal = farthest.latency_s + near * slice / links.near.bytes_per_s +
                      far * slice / links.far.bytes_per_s + 2 * others * links.message_s;
  // The owner of the largest chunk has it from the ranks of the slices that it lies in.
  const double largest = std::max(slice, bucket.largest_chunk);
  const double messages = slice > 0 ? std::min(others, std::ceil(largest / slice)) : 0;
  return deal + seconds(farthest, largest) + messages * links.message_s;
}

Exchange choose_exchange(BucketSize bucket, int ranks, const GroupLinks& links, ExchangeChoice asked,
                         bool fits) {
  if (ranks == 1) return Exchange::halving;  // of no rounds
  if (!std::has_single_bit(unsigned(ranks)) || asked == ExchangeChoice::direct) return Exchange::direct;
  if (asked == ExchangeChoice::halving || !fits) return Exchange::halving;
  return direct_seconds(bucket, ranks, links) < halving_seconds(bucket, ranks, links) ? Exchange::direct
                                                                                      : Exchange::halving;
}

}  // namespace trainctl::parallel
