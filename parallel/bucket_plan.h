// The buckets of groups: which chunks travel together and how, and the buffers through which they go. Pure;
// what make_plan and make_layout put into a Plan and a Layout.
#pragma once
#include "parallel/exchange_cost.h"
#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

/// What lies behind something else in a buffer begins at a multiple of 64 bytes.
constexpr size_t align_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Cuts every group into buckets, chooses their exchanges, and fills LaneLine::largest.
void plan_buckets(Plan& plan, const ShardingOptions& options);

/// ShardingOptions::links, which are those of the first line, between the ranks of `line`.
GroupLinks links_along(const LaneLine& line, const ShardingOptions& options);

/// What decides about the exchange of a bucket, of a plan whose buckets are cut.
///   bytes_of_element  on the wire
BucketLoad bucket_load(const Plan& plan, const GroupPlan& group, const Bucket& bucket,
                       size_t bytes_of_element);

/// The buffers of a rank that has these lanes of each line.
BucketRing bucket_ring(const Plan& plan, const ShardingOptions& options,
                       const std::vector<LaneShare>& shares);
GatherRing gather_ring(const Plan& plan, const ShardingOptions& options);

}  // namespace trainctl::parallel::sharding
