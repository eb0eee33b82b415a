#include "parallel/sharding_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "parallel/bucket_plan.h"
#include "parallel/communicator.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace sharding {

bool reduces_lanes(const ShardingOptions& options, int ranks) { return options.zero_stage >= 2 && ranks > 1; }
bool shards_weights(const ShardingOptions& options, int ranks) {
  return options.zero_stage >= 3 && ranks > 1;
}

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
void place_uses(const std::vector<ParamUse>& uses, const ShardingOptions& options, const AxisLine& tensor,
                Plan& plan) {
  const bool sharded = shards_weights(options, plan.lines.front().ranks);
  PartArena weights(sharded && options.shares_weights), gradients(options.shares_gradients);
  std::map<int, int> first_uses;  // by parameter
  for (int u = 0; u < int(uses.size()); ++u) {
    const ParamUse& use = uses[size_t(u)];
    const LocalShard shard = local_shard(use.layout, tensor.size, tensor.rank);
    Placement p{.rows = shard.rows, .cols = shard.cols, .weight_of = u};
    const size_t elements = size_t(p.rows * p.cols);
    const auto [first, fresh] = first_uses.try_emplace(use.param, u);
    if (!fresh && !sharded) p.weight_of = first->second;
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

LaneLine make_lane_line(const AxisLine& of, int lanes) {
  LaneLine line{.axis = of.axis, .ranks = of.size, .lanes = lanes, .subtrees = 0};
  for (int r = 0; r < line.ranks; ++r) line.subtrees += subtree_count(lanes_of_rank(lanes, line.ranks, r));
  return line;
}

/// The line of an axis with lanes, or of this rank alone; made when first asked for.
int find_line(Plan& plan, const AxisLines& lines, AxisSet axis, int lanes) {
  for (size_t i = 0; i < plan.lines.size(); ++i)
    if (plan.lines[i].axis == axis) return int(i);
  plan.lines.push_back(make_lane_line(axis == 0 ? AxisLine{.axis = 0} : line_of(lines, axis), lanes));
  return int(plan.lines.size()) - 1;
}

/// lanes 0, 1, .. of those that a rank computes one after another, or of the line's lanes.
LaneRun lanes_here(const LaneLine& line, const ShardingOptions& options, int rank) {
  if (reduces_lanes(options, line.ranks)) return {0, line.lanes / line.ranks};
  return lanes_of_rank(line.lanes, line.ranks, rank);
}

/// Puts each chunk into its group, whose list begins with the last use.
void list_chunks(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                 const ShardingOptions& options, const AxisLine& tensor, Plan& plan) {
  std::map<GroupKey, GroupPlan> groups;
  for (const ParamUse& use : uses) groups[key_of(use)].key = key_of(use);
  const bool by_part = reduces_lanes(options, plan.lines.front().ranks);
  for (int u = int(uses.size()) - 1; u >= 0; --u) {
    const ParamUse& use = uses[size_t(u)];
    for (const LocalChunk& c :
         local_chunks(use.layout, use.param, grids[size_t(use.param)], tensor.size, tensor.rank))
      groups[key_of(use)].chunks.push_back({u, c, 0, 0, by_part ? use.part : 0});
  }
  for (auto& [key, group] : groups) plan.groups.push_back(std::move(group));
  for (size_t u = 0; u < uses.size(); ++u)
    plan.places[u].group = int(std::distance(groups.begin(), groups.find(key_of(uses[u]))));
}

/// The group of an earlier use of the same parameters, or `group` itself.
int state_of(const Plan& plan, int group) {
  GroupKey key = plan.groups[size_t(group)].key;
  for (int earlier = 0; earlier < group; ++earlier) {
    key.use = plan.groups[size_t(earlier)].key.use;
    if (key != plan.groups[size_t(earlier)].key) continue;
    ENSURE(plan.groups[size_t(earlier)].chunks.size() == plan.groups[size_t(group)].chunks.size(),
           "{}: two uses with different chunks", name_of(key));
    return earlier;
  }
  return group;
}

/// Whether its gradients lie in flat order, on a line of one rank: those of one use, in whole rows.
bool lies_flat(const GroupPlan& group, const Plan& plan) {
  int64_t next = 0;
  for (const FlatChunk& c : group.chunks) {
    const Placement& place = plan.places[size_t(c.use)];
    if (c.use != group.chunks.front().use || c.where.global.cols() != place.cols ||
        c.where.local_row * place.cols != next)
      return false;
    next += c.where.global.count();
  }
  return true;
}

/// The owners of the chunks: chunk by chunk, or, where an update reads a whole matrix, use by use.
std::vector<int> owners_of(const GroupPlan& group, const std::vector<int64_t>& sizes, int ranks) {
  if (!group.key.states.has_matrices()) return deal_owners(sizes, ranks);
  std::vector<int64_t> of_use;   // the chunks of a use come one after another
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i == 0 || group.chunks[i].use != group.chunks[i - 1].use) of_use.push_back(0);
    of_use.back() += sizes[i];
  }
  const std::vector<int> dealt = deal_owners(of_use, ranks);
  std::vector<int> owners;
  for (size_t i = 0, use = 0; i < sizes.size(); ++i) {
    if (i > 0 && group.chunks[i].use != group.chunks[i - 1].use) ++use;
    owners.push_back(dealt[use]);
  }
  return owners;
}

/// Deals the chunks out to the ranks of the group's line, and gives them their places in flat order.
void deal_chunks(GroupPlan& group, int ranks) {
  std::vector<int64_t> sizes;
  for (const FlatChunk& c : group.chunks) sizes.push_back(c.where.global.count());
  const std::vector<int> owners = owners_of(group, sizes, ranks);
  group.owner_begin.assign(size_t(ranks) + 1, 0);
  for (size_t i = 0; i < sizes.size(); ++i) group.owner_begin[size_t(owners[i]) + 1] += sizes[i];
  std::partial_sum(group.owner_begin.begin(), group.owner_begin.end(), group.owner_begin.begin());
  std::vector<int64_t> next = group.owner_begin;
  for (size_t i = 0; i < sizes.size(); ++i) {
    group.chunks[i].owner = owners[i];
    group.chunks[i].offset = std::exchange(next[size_t(owners[i])], next[size_t(owners[i])] + sizes[i]);
  }
}

}  // namespace

Plan make_plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
               const ShardingOptions& options, const AxisLines& lines) {
  Plan plan;
  const auto with_lanes =
      std::find_if(lines.begin(), lines.end(), [](const AxisLine& line) { return line.has_lanes; });
  const AxisLine first = with_lanes == lines.end() ? AxisLine{.axis = 0} : *with_lanes;
  const AxisLine tensor = line_of(lines, axes::tensor);
  const int lanes = options.lanes > 0 ? options.lanes : first.size;
  plan.lines.push_back(make_lane_line(first, lanes));
  ENSURE(!reduces_lanes(options, first.size) || lanes % first.size == 0, "ZeRO-{} with {} lanes on {} ranks",
         options.zero_stage, lanes, first.size);
  place_uses(uses, options, tensor, plan);
  list_chunks(uses, grids, options, tensor, plan);
  for (int g = 0; g < int(plan.groups.size()); ++g) {
    GroupPlan& group = plan.groups[size_t(g)];
    group.line = find_line(plan, lines, group.key.lane_axis(lines), lanes);
    group.state_of = state_of(plan, g);
    group.sums = group.key.sum_axes(lines);
    group.repeats_sums = group.key.repeats_sums(lines);
    deal_chunks(group, plan.line_of(g).ranks);
  }
  ENSURE(options.zero_stage < 2 || plan.lines.size() == 1,
         "ZeRO-{} with parameters that are sharded along {} axes", options.zero_stage, plan.lines.size());
  for (int g = 0; g < int(plan.groups.size()); ++g) {
    GroupPlan& group = plan.groups[size_t(g)];
    const bool added_here =
        group.state_of != g || std::any_of(plan.groups.begin() + g + 1, plan.groups.end(),
                                           [&](const GroupPlan& later) { return later.state_of == g; });
    const bool stays = group.sums.empty() && !added_here;
    group.in_place = plan.line_of(g).ranks == 1 && (stays || lies_flat(group, plan));
  }
  plan_buckets(plan, options);
  plan.gather_ring = gather_ring(plan, options);
  return plan;
}

bool adds_in_transport(const GroupPlan& group, const ShardingOptions& options, int ranks) {
  return options.fast_reduction && ranks > 1 && !group.repeats_sums;
}

size_t sum_received_bytes(int ranks, int64_t elements) {
  // Two ranks exchange all they have.
  return ranks == 2 ? size_t(elements) * 4 : all_reduce_scratch_bytes(ranks, DType::f32, elements);
}

size_t GroupBytes::most_received() const {
  size_t most = 0;
  for (const auto& [axis, bytes] : received) most = std::max(most, bytes);
  return most;
}

GroupBytes group_bytes(const Plan& plan, int g, const ShardingOptions& options, const AxisLines& lines,
                       const GroupShare& share) {
  const GroupPlan& group = plan.groups[size_t(g)];
  GroupBytes bytes;
  const bool whole = options.zero_stage == 0, owns = owns_state(plan, g);
  const size_t size = size_t(group.size()), own = size_t(share.own);
  for (const StateRow& row : group.key.states)
    if (owns) bytes.states.push_back(size_of(row.dtype) * (whole ? size : own));
  if (owns && shards_weights(options, plan.line_of(g).ranks)) bytes.weights = own * size_of(group.key.dtype);
  if (!group.in_place) bytes.summed = 4 * (whole ? size : own) * size_t(share.levels);
  for (const AxisSet axis : group.sums)
    if (owns) bytes.received.emplace_back(axis, sum_received_bytes(line_of(lines, axis).size, share.own));
  return bytes;
}

bool gathers_params(const Layout& layout, int g) {
  if (layout.line_of(g).ranks == 1 || layout.options.zero_stage == 0) return false;
  return layout.shards_weights() || owns_state(layout.plan, g);
}

namespace {

/// All that the ranks of a line differ in.
struct Share {
  std::vector<int64_t> elements, chunks;  // [group]
  int gradient_levels = 1, own_levels = 1;
  BucketRing ring;
  auto operator<=>(const Share&) const = default;
};

Share share_of(const Layout& layout) {
  Share share;
  for (int g = 0; g < layout.groups(); ++g) {
    const int rank = layout.share_of(g).rank;
    share.elements.push_back(layout.group(g).own(rank));
    share.chunks.push_back(std::count_if(layout.group(g).chunks.begin(), layout.group(g).chunks.end(),
                                         [&](const FlatChunk& c) { return c.owner == rank; }));
  }
  share.gradient_levels = layout.gradient_levels();
  share.own_levels = layout.own_levels();
  share.ring = layout.ring;
  return share;
}

ShardingBytes bytes_of(const Plan& plan, const ShardingOptions& options, const AxisLines& lines,
                       const Share& share) {
  ShardingBytes bytes{plan.weight_bytes, size_t(plan.gradient_elements * share.gradient_levels) * 4, 0,
                      share.ring.bytes() + plan.gather_ring.bytes()};
  for (int g = 0; g < int(plan.groups.size()); ++g) {
    const GroupBytes group =
        group_bytes(plan, g, options, lines, {.own = share.elements[size_t(g)], .levels = share.own_levels});
    bytes.weights += group.weights;
    for (const size_t state : group.states) bytes.optimizer += state;
    bytes.communication += group.summed;
    for (const auto& [axis, received] : group.received) bytes.communication += received;
    if (!owns_state(plan, g)) continue;
    const GroupPlan& of = plan.groups[size_t(g)];
    const bool whole = options.zero_stage == 0;
    const int64_t boxes = whole ? int64_t(of.chunks.size()) : share.chunks[size_t(g)];
    const int64_t elements = whole ? of.size() : share.elements[size_t(g)];
    bytes.state_boxes += boxes;
    bytes.state_elements += elements;
    bytes.saved += size_t(elements) * of.key.states.saved_bytes_per_element();
    bytes.saved_chunks += boxes * of.key.states.saved();
  }
  return bytes;
}

}  // namespace

std::vector<RankClass> rank_classes(const std::vector<ParamUse>& uses,
                                    const std::vector<std::vector<Box>>& grids,
                                    const ShardingOptions& options, const AxisLines& lines) {
  const Plan plan = make_plan(uses, grids, options, lines);
  ENSURE(plan.lines.size() == 1);
  const LaneLine& line = plan.lines.front();
  std::vector<Share> shares(size_t(line.ranks));
  for (const GroupPlan& group : plan.groups) {
    for (int r = 0; r < line.ranks; ++r) {
      shares[size_t(r)].elements.push_back(group.own(r));
      shares[size_t(r)].chunks.push_back(0);
    }
    for (const FlatChunk& c : group.chunks) ++shares[size_t(c.owner)].chunks.back();
  }
  std::vector<RankClass> classes;
  std::set<Share> seen;
  for (int r = 0; r < line.ranks; ++r) {
    Share& share = shares[size_t(r)];
    const LaneRun lanes = lanes_here(line, options, r);
    (reduces_lanes(options, line.ranks) ? share.own_levels : share.gradient_levels) = sums_at_once(lanes);
    share.ring = bucket_ring(plan, options, {{r, lanes}});
    if (seen.insert(share).second) classes.push_back({r, bytes_of(plan, options, lines, share)});
  }
  return classes;
}

Layout make_layout(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                   const ShardingOptions& options, AxisLines lines) {
  Plan plan = make_plan(uses, grids, options, lines);
  std::vector<LaneShare> shares;
  for (const LaneLine& line : plan.lines) {
    const int rank = line.axis == 0 ? 0 : line_of(lines, line.axis).rank;
    shares.push_back({rank, lanes_here(line, options, rank)});
  }
  const BucketRing ring = bucket_ring(plan, options, shares);
  return {std::move(uses), options, std::move(lines), std::move(plan), std::move(shares), ring};
}

int Layout::gradient_levels() const {
  int most = 1;
  if (!reduces_lanes())
    for (const LaneShare& share : shares) most = std::max(most, sums_at_once(share.lanes));
  return most;
}

GroupBytes Layout::group_bytes(int g) const {
  return sharding::group_bytes(plan, g, options, lines,
                               {.own = group(g).own(share_of(g).rank), .levels = own_levels()});
}

ShardingBytes Layout::bytes() const { return bytes_of(plan, options, lines, sharding::share_of(*this)); }

int64_t Layout::state_begin(int g) const {
  return options.zero_stage == 0 ? 0 : group(g).owner_begin[size_t(share_of(g).rank)];
}

std::vector<OwnedChunk> Layout::owned_chunks() const {
  std::vector<OwnedChunk> owned;
  for (int g = 0; g < groups(); ++g) {
    if (!owns_state(plan, g)) continue;
    const int rank = share_of(g).rank;
    for (const FlatChunk& c : group(g).chunks)
      if (options.zero_stage == 0 || c.owner == rank)
        owned.push_back({g, c, uses[size_t(c.use)].counted && c.owner == rank});
  }
  return owned;
}

}  // namespace sharding

ShardingBytes ShardedParams::plan(const std::vector<ParamUse>& uses,
                                  const std::vector<std::vector<Box>>& grids, const ShardingOptions& options,
                                  const AxisLines& lines) {
  return sharding::make_layout(uses, grids, options, lines).bytes();
}

}  // namespace trainctl::parallel
