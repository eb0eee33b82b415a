#include "parallel/bucket_plan.h"

#include <algorithm>
#include <bit>
#include <map>

#include "parallel/buckets.h"
#include "parallel/slices.h"

namespace trainctl::parallel::sharding {
namespace {

void cut_into_buckets(GroupPlan& group, const ShardingOptions& options) {
  int64_t elements = 0;
  for (size_t i = 0; i < group.chunks.size(); ++i) {
    const int64_t count = group.chunks[i].where.global.count();
    if (i == 0 || elements + count > options.bucket_elements ||
        group.chunks[i].part != group.chunks[i - 1].part) {
      group.buckets.push_back({i, i});
      elements = 0;
    }
    group.buckets.back().end = i + 1;
    elements += count;
  }
}

struct BucketElements {
  int64_t all = 0, largest_chunk = 0;
  int64_t half = 0;  // the most that ranks with equal lowest bit own
};
BucketElements elements_of(const GroupPlan& group, const Bucket& bucket) {
  BucketElements result;
  int64_t owned[2] = {};
  for (size_t i = bucket.begin; i < bucket.end; ++i) {
    const int64_t count = group.chunks[i].where.global.count();
    owned[group.chunks[i].owner % 2] += count;
    result.largest_chunk = std::max(result.largest_chunk, count);
  }
  result.all = owned[0] + owned[1];
  result.half = std::max(owned[0], owned[1]);
  return result;
}

/// The elements of a bucket that are not in the slice of their owner, where the owners' parts lie in the
/// order of the ranks.
int64_t passed_on(const GroupPlan& group, const Bucket& bucket, int64_t all, int ranks) {
  std::map<int, int64_t> parts;
  for (size_t i = bucket.begin; i < bucket.end; ++i)
    parts[group.chunks[i].owner] += group.chunks[i].where.global.count();
  int64_t begin = 0, in_place = 0;
  for (const auto& [owner, count] : parts) {
    in_place += intersection(slice_of(all, owner, ranks), {begin, begin + count}).count();
    begin += count;
  }
  return all - in_place;
}

/// How many elements a rank receives of a bucket that a power of two of ranks exchange directly.
int64_t received_directly(int64_t elements, int ranks) {
  return (ranks - 1) * most_of_a_slice(elements, ranks);
}

/// Calls visit(group, its line, bucket, elements) for all buckets.
template <class Visit>
void each_bucket(Plan& plan, Visit visit) {
  for (GroupPlan& group : plan.groups)
    for (Bucket& bucket : group.buckets)
      visit(group, plan.lines[size_t(group.line)], bucket, elements_of(group, bucket));
}

/// Whether buckets may be halved.
bool can_halve(const ShardingOptions& options, int ranks) {
  return std::has_single_bit(unsigned(ranks)) && options.exchange != ExchangeChoice::direct;
}

/// Of the buckets of one line.
BucketRing ring_of(const Plan& plan, const LaneLine& line, const ShardingOptions& options, LaneRun lanes) {
  const LargestBucket& largest = line.largest;
  const int ranks = line.ranks;
  if (ranks == 1) return {};
  const bool f32 = options.reduction_dtype == DType::f32;
  const int own = plan.reduces_lanes ? 1 : subtree_count(lanes);
  // Of a rank's peer in round 0 of the halving it receives the most: all that ranks with its lowest bit own.
  // In the direct exchange, it is its slice of the subtrees of all others.
  const bool halves = can_halve(options, ranks);
  const int64_t slice = most_of_a_slice(largest.direct, ranks);
  const int64_t received = std::max(halves ? largest.half : 0, (line.subtrees - own) * slice);
  const auto bytes = [&](int64_t elements) {
    return f32 ? size_t(elements) * 4 : align_up(size_t(elements) * size_of(options.reduction_dtype));
  };
  const bool chooses = halves && options.exchange == ExchangeChoice::automatic && ranks > 2;
  const int64_t root = std::max(plan.owner.most_subtrees() * slice, chooses ? largest.half / (ranks - 1) : 0);
  return {.buckets = largest.buckets,
          .sums = std::max(bytes(own * largest.elements), f32 ? 0 : align_up(largest.gathered_bytes)),
          .received = bytes(received),
          .root = f32 ? 0 : align_up(size_t(root) * 4)};
}

}  // namespace

GroupLinks links_along(const LaneLine& line, const ShardingOptions& options) {
  GroupLinks links = options.links;
  if (line.sharing > 1)
    links.neighbours = int(std::bit_floor(unsigned(std::max(1, links.neighbours / line.sharing))));
  return links;
}

BucketLoad bucket_load(const Plan& plan, const GroupPlan& group, const Bucket& bucket,
                       size_t bytes_of_element) {
  const LaneLine& line = plan.lines[size_t(group.line)];
  const BucketElements elements = elements_of(group, bucket);
  const double element = double(bytes_of_element);
  return {.size = {double(elements.all) * element, double(elements.largest_chunk) * element},
          .passed_on = double(passed_on(group, bucket, elements.all, line.ranks)) * element,
          .under_way = std::max(1, line.largest.buckets)};
}

/// The memory of the ring does not depend on the links: a bucket is exchanged directly by choice only where
/// it takes no more than the largest one, halved.
void plan_buckets(Plan& plan, const ShardingOptions& options) {
  for (GroupPlan& group : plan.groups) cut_into_buckets(group, options);
  each_bucket(plan,
              [&](const GroupPlan& group, LaneLine& line, const Bucket&, const BucketElements& elements) {
                LargestBucket& largest = line.largest;
                largest.buckets = std::min(largest.buckets + 1, BucketRing::kBuckets);
                largest.elements = std::max(largest.elements, elements.all);
                const bool owns = &plan.groups[size_t(group.state_of)] == &group;
                if (options.zero_stage > 0 && !shards_weights(options, line.ranks) && owns)
                  largest.gathered_bytes =
                      std::max(largest.gathered_bytes, size_t(elements.all) * size_of(group.key.dtype));
                if (!adds_in_transport(group, options, line.ranks))
                  largest.half = std::max(largest.half, elements.half);
              });
  each_bucket(
      plan, [&](const GroupPlan& group, LaneLine& line, Bucket& bucket, const BucketElements& elements) {
        const bool summed_here = !adds_in_transport(group, options, line.ranks);
        const bool fits = line.ranks > 2 &&
                          (!summed_here || received_directly(elements.all, line.ranks) <= line.largest.half);
        bucket.exchange = exchange_of(bucket_load(plan, group, bucket, size_of(options.reduction_dtype)),
                                      line.ranks, links_along(line, options), options.exchange, fits);
        if (summed_here && bucket.exchange == Exchange::direct)
          line.largest.direct = std::max(line.largest.direct, elements.all);
      });
}

BucketRing bucket_ring(const Plan& plan, const ShardingOptions& options,
                       const std::vector<LaneShare>& shares) {
  BucketRing ring;
  for (size_t i = 0; i < plan.lines.size(); ++i) {
    const BucketRing of_line = ring_of(plan, plan.lines[i], options, shares[i].lanes);
    ring.buckets = std::min(ring.buckets + of_line.buckets, BucketRing::kBuckets);
    ring.sums = std::max(ring.sums, of_line.sums);
    ring.received = std::max(ring.received, of_line.received);
    ring.root = std::max(ring.root, of_line.root);
  }
  return ring;
}

GatherRing gather_ring(const Plan& plan, const ShardingOptions& options) {
  GatherRing ring;
  for (const LaneLine& line : plan.lines)
    if (shards_weights(options, line.ranks))
      ring.buckets = std::min(ring.buckets + line.largest.buckets, BucketRing::kBuckets);
  for (const GroupPlan& group : plan.groups) {
    if (!shards_weights(options, plan.lines[size_t(group.line)].ranks)) continue;
    for (const Bucket& bucket : group.buckets) {
      size_t bytes = 0;
      for (size_t i = bucket.begin; i < bucket.end; ++i)
        bytes += size_t(group.chunks[i].where.global.count()) * size_of(group.key.dtype);
      ring.bucket_bytes = std::max(ring.bucket_bytes, align_up(bytes));
    }
  }
  return ring;
}

}  // namespace trainctl::parallel::sharding
