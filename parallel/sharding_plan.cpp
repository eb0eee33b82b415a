#include "parallel/sharding_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "parallel/buckets.h"
#include "parallel/communicator.h"
#include "parallel/slices.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace sharding {
namespace {

constexpr size_t kAlign = 64;

size_t align_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Group group_of_use(const ParamUse& use) {
  if (use.tie == ParamUse::tied_first) return tied_embedding;
  if (use.tie == ParamUse::tied_second) return tied_head;
  if (use.layout.cut == Cut::none) return use.partial_over_tp ? replicated_partial : replicated;
  return use.dtype == DType::f32 && use.layout.cols == 1 ? cut_vectors : cut_matrices;
}

LargestBucket largest_bucket(const Plan& plan, const ShardingOptions& options, int dp) {
  LargestBucket largest;
  for (int g = 0; g < kGroups; ++g) {
    const GroupPlan& group = plan.groups[size_t(g)];
    for (const Bucket& bucket : buckets_of(group, options.bucket_elements)) {
      int64_t owned[2] = {};
      for (size_t i = bucket.begin; i < bucket.end; ++i)
        owned[group.chunks[i].owner % 2] += group.chunks[i].where.global.count();
      const int64_t elements = owned[0] + owned[1];
      largest.buckets = std::min(largest.buckets + 1, BucketRing::kBuckets);
      largest.elements = std::max(largest.elements, elements);
      if (options.zero_stage > 0 && !shards_weights(options, dp) && owns_state(plan, g))
        largest.gathered_bytes = std::max(largest.gathered_bytes, size_t(elements) * size_of(group.dtype));
      if (adds_in_transport(g, options, dp)) continue;
      largest.summed_here = std::max(largest.summed_here, elements);
      largest.half = std::max({largest.half, owned[0], owned[1]});
    }
  }
  return largest;
}

/// Of a rank's peer in round 0 of the halving it receives the most: all that ranks with its lowest bit own.
/// In the exchange of slices, it is its slice of the subtrees of all others.
BucketRing bucket_ring(const Plan& plan, const ShardingOptions& options, int dp, LaneRun lanes) {
  const LargestBucket& largest = plan.largest;
  if (dp == 1) return {};
  const bool slices = exchange_among(dp) == Exchange::slices, f32 = options.reduction_dtype == DType::f32;
  const int own = slices ? subtree_count(lanes) : 1;
  const int64_t slice = slices ? most_of_a_slice(largest.summed_here, dp) : 0;
  const auto bytes = [&](int64_t elements) {
    return f32 ? size_t(elements) * 4 : align_up(size_t(elements) * size_of(options.reduction_dtype));
  };
  return {.buckets = largest.buckets,
          .sums = std::max(bytes(own * largest.elements), f32 ? 0 : align_up(largest.gathered_bytes)),
          .received = bytes(slices ? (plan.subtrees - own) * slice : largest.half),
          .root = f32 ? 0 : align_up(size_t(slice) * 4)};
}

}  // namespace

const char* name_of(Group group) {
  static constexpr const char* kNames[kGroups] = {"cut matrices",       "cut vectors",
                                                  "whole parameters",   "parameters with partial sums",
                                                  "the tied embedding", "the tied head"};
  return kNames[group];
}

bool reduces_lanes(const ShardingOptions& options, int dp) { return options.zero_stage >= 2 && dp > 1; }
bool shards_weights(const ShardingOptions& options, int dp) { return options.zero_stage >= 3 && dp > 1; }

namespace {

/// Where weights or gradients lie: one after another, or, where parts take turns, in one of two places, that
/// of the even parts and that of the odd ones.
class PartArena {
 public:
  explicit PartArena(bool in_turn) : in_turn_(in_turn) {}
  /// Returns the use's offset from begin_of its part, in bytes. Uses come in order.
  size_t add(const ParamUse& use, size_t bytes) {
    if (in_turn_ && use.part != part_) used_ = 0;
    part_ = use.part;
    if (!use.joined) used_ = align_up(used_);
    const size_t offset = std::exchange(used_, used_ + bytes);
    most_[part_ % 2] = std::max(most_[part_ % 2], align_up(used_));
    return offset;
  }
  size_t begin_of(int part) const { return in_turn_ && part % 2 == 1 ? most_[0] : 0; }
  size_t size() const { return in_turn_ ? most_[0] + most_[1] : used_; }

 private:
  const bool in_turn_;
  int part_ = 0;
  size_t used_ = 0, most_[2] = {};
};

/// The places of all uses.
void place_uses(const std::vector<ParamUse>& uses, const ShardingOptions& options, int dp, Plan& plan) {
  const bool sharded = shards_weights(options, dp);
  PartArena weights(sharded), gradients(options.shares_gradients);
  int embedding = -1;
  for (int u = 0; u < int(uses.size()); ++u) {
    const ParamUse& use = uses[size_t(u)];
    const LocalShard shard = local_shard(use.layout, options.tp, options.tp_rank);
    Placement p{shard.rows, shard.cols, u};
    const size_t elements = size_t(p.rows * p.cols);
    if (use.tie == ParamUse::tied_first) embedding = u;
    if (use.tie == ParamUse::tied_second && embedding >= 0 && !sharded) p.weight_of = embedding;
    p.weight_offset = weights.add(use, p.weight_of == u ? elements * size_of(use.dtype) : 0);
    p.gradient_offset = int64_t(gradients.add(use, elements * 4) / 4);
    plan.places.push_back(p);
  }
  for (size_t u = 0; u < uses.size(); ++u) {
    plan.places[u].weight_offset += weights.begin_of(uses[u].part);
    plan.places[u].gradient_offset += int64_t(gradients.begin_of(uses[u].part) / 4);
  }
  plan.weight_bytes = weights.size();
  plan.gradient_elements = int64_t(gradients.size() / 4);
}

GatherRing gather_ring(const Plan& plan, const ShardingOptions& options, int dp) {
  GatherRing ring;
  if (!shards_weights(options, dp)) return ring;
  ring.buckets = plan.largest.buckets;
  for (const GroupPlan& group : plan.groups)
    for (const Bucket& bucket : buckets_of(group, options.bucket_elements)) {
      size_t bytes = 0;
      for (size_t i = bucket.begin; i < bucket.end; ++i)
        bytes += size_t(group.chunks[i].where.global.count()) * size_of(group.dtype);
      ring.bucket_bytes = std::max(ring.bucket_bytes, align_up(bytes));
    }
  return ring;
}

/// 0, 1, .. of the lanes that a rank computes one after another, or of the run's lanes.
LaneRun lanes_here(const Plan& plan, const ShardingOptions& options, int dp, int rank) {
  if (reduces_lanes(options, dp)) return {0, plan.lanes / dp};
  return lanes_of_rank(plan.lanes, dp, rank);
}

}  // namespace

Plan make_plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
               const ShardingOptions& options, int dp) {
  Plan plan;
  plan.lanes = options.lanes > 0 ? options.lanes : dp;
  ENSURE(!reduces_lanes(options, dp) || plan.lanes % dp == 0, "ZeRO-{} with {} lanes on {} ranks",
         options.zero_stage, plan.lanes, dp);
  plan.subtrees = 0;
  for (int r = 0; r < dp; ++r) plan.subtrees += subtree_count(lanes_of_rank(plan.lanes, dp, r));
  place_uses(uses, options, dp, plan);
  for (int u = int(uses.size()) - 1; u >= 0; --u) {
    const ParamUse& use = uses[size_t(u)];
    GroupPlan& group = plan.groups[group_of_use(use)];
    group.dtype = use.dtype;
    for (const LocalChunk& c :
         local_chunks(use.layout, use.param, grids[size_t(use.param)], options.tp, options.tp_rank))
      group.chunks.push_back({u, c, 0, 0, reduces_lanes(options, dp) ? use.part : 0});
  }
  for (GroupPlan& group : plan.groups) {
    std::vector<int64_t> sizes;
    for (const FlatChunk& c : group.chunks) sizes.push_back(c.where.global.count());
    const std::vector<int> owners = deal_owners(sizes, dp);
    group.owner_begin.assign(size_t(dp) + 1, 0);
    for (size_t i = 0; i < sizes.size(); ++i) group.owner_begin[size_t(owners[i]) + 1] += sizes[i];
    std::partial_sum(group.owner_begin.begin(), group.owner_begin.end(), group.owner_begin.begin());
    std::vector<int64_t> next = group.owner_begin;
    for (size_t i = 0; i < sizes.size(); ++i) {
      group.chunks[i].owner = owners[i];
      group.chunks[i].offset = std::exchange(next[size_t(owners[i])], next[size_t(owners[i])] + sizes[i]);
    }
  }
  plan.largest = largest_bucket(plan, options, dp);
  plan.gather_ring = gather_ring(plan, options, dp);
  return plan;
}

bool adds_in_transport(int group, const ShardingOptions& options, int dp) {
  return options.fast_reduction && dp > 1 && (group != replicated || options.tp == 1);
}

bool packs_gradients(int group, int dp) { return dp > 1 || group == replicated_partial; }

GroupBytes group_bytes(const Plan& plan, int g, const ShardingOptions& options, const GroupShare& share) {
  const GroupPlan& group = plan.groups[size_t(g)];
  GroupBytes bytes;
  if (group.chunks.empty()) return bytes;
  const bool whole = options.zero_stage == 0;
  const size_t size = size_t(group.size()), own = size_t(share.own);
  if (owns_state(plan, g)) bytes.moment = 4 * (whole ? size : own);
  if (owns_state(plan, g) && shards_weights(options, share.dp)) bytes.weights = own * size_of(group.dtype);
  if (packs_gradients(g, share.dp)) bytes.summed = 4 * (whole ? size : own) * size_t(share.levels);
  if (g == replicated_partial && options.tp > 1)
    bytes.partial = all_reduce_scratch_bytes(options.tp, DType::f32, whole ? group.size() : share.largest);
  if (g >= tied_embedding && share.has_tied_peer) bytes.tied = 4 * own;
  return bytes;
}

bool gathers_params(const Layout& layout, int g) {
  if (layout.dp == 1 || layout.options.zero_stage == 0) return false;
  const bool has_copies = layout.shards_weights() || owns_state(layout.plan, g);
  return has_copies && !layout.plan.groups[size_t(g)].chunks.empty();
}

bool owns_state(const Plan& plan, int g) {
  return g != tied_head || plan.groups[tied_head].chunks.empty() ||
         plan.groups[tied_embedding].chunks.empty();
}

namespace {

/// All that the ranks of a dp group differ in.
struct Share {
  std::array<int64_t, kGroups> elements{}, chunks{};
  int lanes = 1, gradient_levels = 1, own_levels = 1;
  BucketRing ring;
  auto operator<=>(const Share&) const = default;
};

std::vector<Share> shares_of(const Plan& plan, const ShardingOptions& options, int dp) {
  std::vector<Share> shares(static_cast<size_t>(dp));
  for (size_t g = 0; g < kGroups; ++g) {
    const GroupPlan& group = plan.groups[g];
    for (int r = 0; r < dp; ++r) shares[size_t(r)].elements[g] = group.own(r);
    for (const FlatChunk& c : group.chunks) ++shares[size_t(c.owner)].chunks[g];
  }
  for (int r = 0; r < dp; ++r) {
    const LaneRun lanes = lanes_here(plan, options, dp, r);
    shares[size_t(r)].lanes = lanes.count();
    (reduces_lanes(options, dp) ? shares[size_t(r)].own_levels : shares[size_t(r)].gradient_levels) =
        sums_at_once(lanes);
    shares[size_t(r)].ring = bucket_ring(plan, options, dp, lanes);
  }
  return shares;
}

/// What the bytes of all ranks have in common.
struct Common {
  const Plan& plan;
  const ShardingOptions& options;
  int dp;
  bool has_tied_peer;
  std::array<int64_t, kGroups> largest_share{};
  Common(const Plan& p, const ShardingOptions& o, int width, bool tied) : plan(p), options(o), dp(width), has_tied_peer(tied) {
    for (size_t g = 0; g < kGroups; ++g) largest_share[g] = plan.groups[g].largest_share();
  }
};

ShardingBytes bytes_of(const Common& c, const Share& share) {
  const Plan& plan = c.plan;
  ShardingBytes bytes{plan.weight_bytes, size_t(plan.gradient_elements * share.gradient_levels) * 4, 0,
                      share.ring.bytes() + plan.gather_ring.bytes()};
  for (int g = 0; g < kGroups; ++g) {
    const GroupShare of_group{.dp = c.dp,
                              .own = share.elements[size_t(g)],
                              .largest = c.largest_share[size_t(g)],
                              .has_tied_peer = c.has_tied_peer,
                              .levels = share.own_levels};
    const GroupBytes group = group_bytes(plan, g, c.options, of_group);
    bytes.weights += group.weights;
    bytes.optimizer += 3 * group.moment;
    bytes.communication += group.summed + group.partial + group.tied;
    if (owns_state(plan, g))
      bytes.state_boxes +=
          c.options.zero_stage == 0 ? int64_t(plan.groups[size_t(g)].chunks.size()) : share.chunks[size_t(g)];
  }
  return bytes;
}

}  // namespace

std::vector<RankClass> rank_classes(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                                    const ShardingOptions& options, int dp, bool has_tied_peer) {
  const Plan plan = make_plan(uses, grids, options, dp);
  const Common common(plan, options, dp, has_tied_peer);
  const std::vector<Share> shares = shares_of(plan, options, dp);
  std::vector<RankClass> classes;
  std::set<Share> seen;
  for (int r = 0; r < dp; ++r)
    if (seen.insert(shares[size_t(r)]).second) classes.push_back({r, bytes_of(common, shares[size_t(r)])});
  return classes;
}

Layout make_layout(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                   const ShardingOptions& options, int dp, int dp_rank, bool has_tied_peer) {
  Plan plan = make_plan(uses, grids, options, dp);
  const LaneRun lanes = lanes_here(plan, options, dp, dp_rank);
  const BucketRing ring = bucket_ring(plan, options, dp, lanes);
  return {std::move(uses), options, dp, dp_rank, has_tied_peer, std::move(plan), lanes, ring};
}

GroupBytes Layout::group_bytes(int g) const {
  const GroupPlan& group = plan.groups[size_t(g)];
  return sharding::group_bytes(plan, g, options,
                               {.dp = dp,
                                .own = group.own(dp_rank),
                                .largest = group.largest_share(),
                                .has_tied_peer = has_tied_peer,
                                .levels = own_levels()});
}

ShardingBytes Layout::bytes() const {
  return bytes_of(Common(plan, options, dp, has_tied_peer), shares_of(plan, options, dp)[size_t(dp_rank)]);
}

int64_t Layout::state_begin(int g) const {
  return options.zero_stage == 0 ? 0 : plan.groups[size_t(g)].owner_begin[size_t(dp_rank)];
}

std::vector<OwnedChunk> Layout::owned_chunks() const {
  std::vector<OwnedChunk> owned;
  for (int g = 0; g < kGroups; ++g) {
    if (!owns_state(plan, g)) continue;
    for (const FlatChunk& c : plan.groups[size_t(g)].chunks)
      if (options.zero_stage == 0 || c.owner == dp_rank)
        owned.push_back({g, c, uses[size_t(c.use)].counted && c.owner == dp_rank});
  }
  return owned;
}

}  // namespace sharding

ShardingBytes ShardedParams::plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                                  const ShardingOptions& options, int dp, int dp_rank, bool has_tied_peer) {
  return sharding::make_layout(uses, grids, options, dp, dp_rank, has_tied_peer).bytes();
}

}  // namespace trainctl::parallel
