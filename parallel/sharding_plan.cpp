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

/// The places of all uses: of each line in arenas of its own.
void place_uses(const std::vector<ParamUse>& uses, const ShardingOptions& options, const AxisLine& tensor,
                Plan& plan) {
  std::vector<PartArena> weights, gradients;  // [line]
  for (const LaneLine& line : plan.lines) {
    weights.emplace_back(shards_weights(options, line.ranks) && options.shares_weights);
    gradients.emplace_back(options.shares_gradients);
  }
  const auto line_of = [&](int u) { return size_t(plan.groups[size_t(plan.places[size_t(u)].group)].line); };
  std::map<int, int> first_uses;  // by parameter
  for (int u = 0; u < int(uses.size()); ++u) {
    const ParamUse& use = uses[size_t(u)];
    const size_t line = line_of(u);
    ENSURE(!use.joined || line == line_of(u - 1), "use {} is joined to one of another line", u);
    const LocalShard shard = local_shard(use.layout, tensor.size, tensor.rank);
    Placement& p = plan.places[size_t(u)];
    p.rows = shard.rows, p.cols = shard.cols, p.weight_of = u;
    const size_t elements = size_t(p.rows * p.cols);
    const auto [first, fresh] = first_uses.try_emplace(use.param, u);
    if (!fresh && !shards_weights(options, plan.lines[line].ranks)) p.weight_of = first->second;
    p.weight_offset = weights[line].add(use, p.weight_of == u ? elements * size_of(use.dtype) : 0);
    p.gradient_offset = int64_t(gradients[line].add(use, elements * 4) / 4);
  }
  std::vector<size_t> begins;  // of each line's weights
  for (size_t line = 0; line < plan.lines.size(); ++line) {
    begins.push_back(align_up(plan.weight_bytes));
    plan.weight_bytes = begins.back() + weights[line].size();
    plan.lines[line].gradient_elements = int64_t(gradients[line].size() / 4);
  }
  for (int u = 0; u < int(uses.size()); ++u) {
    const size_t line = line_of(u);
    Placement& p = plan.places[size_t(u)];
    p.weight_offset += begins[line] + weights[line].begin_of(uses[size_t(u)].part);
    p.gradient_offset += int64_t(gradients[line].begin_of(uses[size_t(u)].part) / 4);
  }
}

LaneLine make_lane_line(const AxisLine& of, int lanes, int first_ranks, bool reduces_lanes) {
  ENSURE(of.size > 0 && first_ranks % of.size == 0,
         "axis {}: {} ranks with lanes do not divide the {} ranks of the first axis with lanes", of.axis,
         of.size, first_ranks);
  LaneLine line{
      .axis = of.axis, .ranks = of.size, .sharing = first_ranks / of.size, .lanes = lanes, .subtrees = 0};
  for (int r = 0; r < line.ranks; ++r)
    line.subtrees += reduces_lanes ? 1 : subtree_count(lanes_of_rank(lanes, line.ranks, r));
  return line;
}

/// The line of an axis with lanes, or of this rank alone; made when first asked for.
int find_line(Plan& plan, const AxisLines& lines, AxisSet axis) {
  for (size_t i = 0; i < plan.lines.size(); ++i)
    if (plan.lines[i].axis == axis) return int(i);
  const LaneLine& first = plan.lines.front();
  plan.lines.push_back(make_lane_line(axis == 0 ? AxisLine{.axis = 0} : line_of(lines, axis), first.lanes,
                                      first.ranks, plan.reduces_lanes));
  return int(plan.lines.size()) - 1;
}

/// lanes 0, 1, .. of those that come to a rank one after another, or of the line's lanes.
LaneRun lanes_here(const LaneLine& line, const Plan& plan, int rank) {
  if (plan.reduces_lanes) return {0, times_of_lanes(line.lanes, line.ranks)};
  return lanes_of_rank(line.lanes, line.ranks, rank);
}

/// Of the gradients of all lanes that a rank adds before a reduction. From ZeRO-2 on these are the lanes of
/// one time, which have the levels of the first time's: neighbours from a multiple of their number on. Parts
/// of a lane grow together, but where several ranks share a place (merges_each).
LaneLevels gradient_levels(const LaneLine& line, const Plan& plan, const ShardingOptions& options, int rank) {
  const int dp = plan.lanes_at_once();
  return levels_of_lanes(
      lanes_in_time(plan.reduces_lanes ? dp : line.lanes, dp, plan.reduces_lanes, line.ranks, rank),
      options.accumulates || (line.sharing == 1 && plan.parts_of_lane > 1));
}
/// LaneLevels::count of these.
int gradient_level_count(const LaneLine& line, const Plan& plan, const ShardingOptions& options, int rank) {
  if (line.sharing > 1 || plan.parts_of_lane > 1) return gradient_levels(line, plan, options, rank).count;
  return plan.reduces_lanes ? 1 : sums_at_once(lanes_here(line, plan, rank));
}

/// Where the gradients of each line begin, and where those of the last one end: elements.
std::vector<int64_t> gradient_begins(const Plan& plan, const std::vector<int>& levels) {
  std::vector<int64_t> begins;
  int64_t end = 0;
  for (size_t line = 0; line < plan.lines.size(); ++line) {
    begins.push_back(int64_t(align_up(size_t(end) * 4) / 4));
    end = begins.back() + plan.lines[line].gradient_elements * levels[line];
  }
  begins.push_back(end);
  return begins;
}

/// Gives the chunks of the use, which come last in the list, the numbers of their first blocks.
void count_blocks(const ParamUse& use, const std::vector<Box>& grid, std::vector<FlatChunk>& chunks) {
  if (!use.states.has(StateRole::first_scales)) return;
  std::vector<int64_t> first{0};
  for (const Box& box : grid) first.push_back(first.back() + kernels::moment_blocks(box.count()));
  for (size_t i = chunks.size(); i > 0 && chunks[i - 1].where.param == use.param; --i)
    chunks[i - 1].first_block = first[size_t(chunks[i - 1].where.chunk)];
}

/// Puts each chunk into its group, whose list begins with the last use.
void list_chunks(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                 const AxisLine& tensor, Plan& plan) {
  plan.places.resize(uses.size());
  std::map<GroupKey, GroupPlan> groups;
  std::map<GroupKey, size_t> chunks;   // of the groups, about
  for (const ParamUse& use : uses) {
    const int ranks = use.layout.cut == Cut::none ? 1 : tensor.size;
    chunks[key_of(use)] += grids[size_t(use.param)].size() / size_t(ranks) + 1;
  }
  for (const auto& [key, count] : chunks) {
    groups[key].key = key;
    groups[key].chunks.reserve(count);
  }
  for (int u = int(uses.size()) - 1; u >= 0; --u) {
    const ParamUse& use = uses[size_t(u)];
    for (const LocalChunk& c :
         local_chunks(use.layout, use.param, grids[size_t(use.param)], tensor.size, tensor.rank))
      groups[key_of(use)].chunks.push_back({.use = u, .where = c, .part = plan.reduces_lanes ? use.part : 0});
    count_blocks(use, grids[size_t(use.param)], groups[key_of(use)].chunks);
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
std::vector<int> owners_of(const GroupPlan& group, const std::vector<ParamUse>& uses,
                           const std::vector<int64_t>& sizes, int ranks) {
  if (!group.key.states.has_matrices()) return deal_owners(sizes, ranks);
  std::vector<int64_t> of_use;  // the chunks of a use come one after another
  for (size_t i = 0; i < sizes.size(); ++i) {
    const ParamUse& use = uses[size_t(group.chunks[i].use)];
    const bool by_products = use.rule == UpdateRule::muon;
    if (i == 0 || group.chunks[i].use != group.chunks[i - 1].use)
      of_use.push_back(by_products ? muon_cost(use.layout) : 0);
    if (!by_products) of_use.back() += sizes[i];
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
void deal_chunks(GroupPlan& group, const std::vector<ParamUse>& uses, int ranks) {
  std::vector<int64_t> sizes;
  for (const FlatChunk& c : group.chunks) sizes.push_back(c.where.global.count());
  const std::vector<int> owners = owners_of(group, uses, sizes, ranks);
  group.owner_begin.assign(size_t(ranks) + 1, 0);
  for (size_t i = 0; i < sizes.size(); ++i) group.owner_begin[size_t(owners[i]) + 1] += sizes[i];
  std::partial_sum(group.owner_begin.begin(), group.owner_begin.end(), group.owner_begin.begin());
  std::vector<int64_t> next = group.owner_begin;
  for (size_t i = 0; i < sizes.size(); ++i) {
    group.chunks[i].owner = owners[i];
    group.chunks[i].offset = std::exchange(next[size_t(owners[i])], next[size_t(owners[i])] + sizes[i]);
  }
  group.block_begin.assign(size_t(ranks) + 1, 0);
  for (size_t i = 0; i < sizes.size(); ++i)
    group.block_begin[size_t(owners[i]) + 1] += kernels::moment_blocks(sizes[i]);
  std::partial_sum(group.block_begin.begin(), group.block_begin.end(), group.block_begin.begin());
  next = group.block_begin;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t& at = next[size_t(owners[i])];
    group.chunks[i].block_offset = std::exchange(at, at + kernels::moment_blocks(sizes[i]));
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
  plan.reduces_lanes = (options.zero_stage >= 2 && first.size > 1) || options.has_parts;
  plan.lines.push_back(make_lane_line(first, lanes, first.size, plan.reduces_lanes));
  plan.parts_of_lane = options.parts_of_lane;
  plan.owner = plan.reduces_lanes ? owner_levels(lanes, plan.lanes_at_once()) : owner_levels(1, 1);
  list_chunks(uses, grids, tensor, plan);
  for (GroupPlan& group : plan.groups) group.line = find_line(plan, lines, group.key.lane_axis(lines));
  ENSURE(plan.owner.most_subtrees() == 1 || (plan.lines.size() == 1 && !options.fast_reduction),
         "{} lanes are reduced by {} ranks, which do not divide them, along {} axes", lanes,
         plan.lanes_at_once(), plan.lines.size());
  place_uses(uses, options, tensor, plan);
  for (int g = 0; g < int(plan.groups.size()); ++g) {
    GroupPlan& group = plan.groups[size_t(g)];
    group.state_of = state_of(plan, g);
    group.sums = group.key.sum_axes(lines);
    group.repeats_sums = group.key.repeats_sums(lines);
    deal_chunks(group, uses, plan.line_of(g).ranks);
  }
  // Only where they stay until the step: no other part takes their place, and no later time adds to them.
  const bool keeps_gradients = !plan.reduces_lanes || (plan.owner.times() == 1 && !options.shares_gradients);
  for (int g = 0; g < int(plan.groups.size()); ++g) {
    GroupPlan& group = plan.groups[size_t(g)];
    const bool added_here =
        group.state_of != g || std::any_of(plan.groups.begin() + g + 1, plan.groups.end(),
                                           [&](const GroupPlan& later) { return later.state_of == g; });
    const bool stays = group.sums.empty() && !added_here;
    group.in_place = plan.line_of(g).ranks == 1 && keeps_gradients && (stays || lies_flat(group, plan));
  }
  plan_buckets(plan, options);
  plan.gather_ring = gather_ring(plan, options);
  for (const ParamUse& use : uses)
    if (use.rule == UpdateRule::muon && !options.weights_alone) plan.muon.add(use.layout);
  plan.state_part = largest_state_part(plan, options);
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
  if (options.weights_alone) {
    bytes.states.resize(owns ? group.key.states.size() : 0);
    return bytes;
  }
  const size_t size = size_t(group.size()), own = size_t(share.own);
  for (const StateRow& row : group.key.states)
    if (owns)
      bytes.states.push_back(whole ? row.own_bytes(group.size(), group.blocks())
                                   : row.own_bytes(share.own, share.blocks));
  if (owns && shards_weights(options, plan.line_of(g).ranks)) bytes.weights = own * size_of(group.key.dtype);
  if (!group.in_place) bytes.summed = 4 * ((whole ? size : own) + own * size_t(share.levels - 1));
  if (owns) bytes.home = home_of(group.key, options);
  for (const AxisSet axis : group.sums)
    if (owns) bytes.received.emplace_back(axis, sum_received_bytes(line_of(lines, axis).size, share.own));
  return bytes;
}

bool gathers_params(const Layout& layout, int g) {
  if (layout.line_of(g).ranks == 1 || layout.options.zero_stage == 0) return false;
  return layout.shards_weights(g) || owns_state(layout.plan, g);
}

namespace {

/// All that the ranks of a line differ in.
struct Share {
  std::vector<int64_t> elements, blocks, chunks;  // [group]
  int64_t gradient_elements = 0;          // of all lines and levels
  BucketRing ring;
  auto operator<=>(const Share&) const = default;
};

Share share_of(const Layout& layout) {
  Share share;
  for (int g = 0; g < layout.groups(); ++g) {
    const int rank = layout.share_of(g).rank;
    share.elements.push_back(layout.group(g).own(rank));
    share.blocks.push_back(layout.group(g).own_blocks(rank));
    share.chunks.push_back(std::count_if(layout.group(g).chunks.begin(), layout.group(g).chunks.end(),
                                         [&](const FlatChunk& c) { return c.owner == rank; }));
  }
  share.gradient_elements = layout.gradient_elements();
  share.ring = layout.ring;
  return share;
}

ShardingBytes bytes_of(const Plan& plan, const ShardingOptions& options, const AxisLines& lines,
                       const Share& share) {
  ShardingBytes bytes{plan.weight_bytes,
                      size_t(share.gradient_elements) * 4,
                      0,
                      share.ring.bytes() + plan.gather_ring.bytes(),
                      plan.muon.bytes(),
                      plan.muon.square_sums()};
  for (int g = 0; g < int(plan.groups.size()); ++g) {
    const GroupBytes group = group_bytes(plan, g, options, lines,
                                         {.own = share.elements[size_t(g)],
                                          .blocks = share.blocks[size_t(g)],
                                          .levels = plan.owner.levels.count});
    bytes.weights += group.weights;
    for (const size_t state : group.states)
      (group.home == StateHome::memory ? bytes.optimizer
       : group.home == StateHome::file ? bytes.state_file
                                       : bytes.state_host) += state;
    bytes.communication += group.summed;
    for (const auto& [axis, received] : group.received) bytes.communication += received;
    if (!owns_state(plan, g)) continue;
    const GroupPlan& of = plan.groups[size_t(g)];
    const bool whole = options.zero_stage == 0;
    const int64_t boxes = whole ? int64_t(of.chunks.size()) : share.chunks[size_t(g)];
    const int64_t elements = whole ? of.size() : share.elements[size_t(g)];
    bytes.state_boxes += boxes;
    bytes.state_elements += elements;
    bytes.saved += of.key.states.saved_bytes(elements, whole ? of.blocks() : share.blocks[size_t(g)]);
    bytes.saved_chunks += boxes * of.key.states.saved();
  }
  bytes.optimizer += std::min(bytes.state_file, StatePlaces::kPartsInMemory * plan.state_part);
  return bytes;
}

}  // namespace

std::vector<RankClass> rank_classes(const std::vector<ParamUse>& uses,
                                    const std::vector<std::vector<Box>>& grids,
                                    const ShardingOptions& options, const AxisLines& lines) {
  const Plan plan = make_plan(uses, grids, options, lines);
  std::vector<std::vector<int64_t>> chunks;  // [group][rank of its line]
  for (const GroupPlan& group : plan.groups) {
    chunks.emplace_back(size_t(plan.lines[size_t(group.line)].ranks));
    for (const FlatChunk& c : group.chunks) ++chunks.back()[size_t(c.owner)];
  }
  std::vector<std::vector<int>> levels_of(plan.lines.size());  // [line][rank of it]
  for (size_t i = 0; i < plan.lines.size(); ++i)
    for (int r = 0; r < plan.lines[i].ranks; ++r)
      levels_of[i].push_back(gradient_level_count(plan.lines[i], plan, options, r));
  std::vector<RankClass> classes;
  std::set<Share> seen;
  std::vector<LaneShare> shares(plan.lines.size());
  std::vector<int> levels(plan.lines.size());
  for (int r = 0; r < plan.lines.front().ranks; ++r) {
    Share share;
    share.elements.reserve(plan.groups.size());
    share.blocks.reserve(plan.groups.size());
    share.chunks.reserve(plan.groups.size());
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const int rank = plan.line_of(int(g)).rank_of(r);
      share.elements.push_back(plan.groups[g].own(rank));
      share.blocks.push_back(plan.groups[g].own_blocks(rank));
      share.chunks.push_back(chunks[g][size_t(rank)]);
    }
    for (size_t i = 0; i < plan.lines.size(); ++i) {
      shares[i].rank = plan.lines[i].rank_of(r);
      shares[i].lanes = lanes_here(plan.lines[i], plan, shares[i].rank);
      levels[i] = levels_of[i][size_t(shares[i].rank)];
    }
    share.gradient_elements = gradient_begins(plan, levels).back();
    share.ring = bucket_ring(plan, options, shares);
    if (seen.insert(share).second) classes.push_back({r, bytes_of(plan, options, lines, share)});
  }
  return classes;
}

Layout make_layout(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                   const ShardingOptions& options, AxisLines lines) {
  Plan plan = make_plan(uses, grids, options, lines);
  std::vector<LaneShare> shares;
  std::vector<int> levels;
  for (const LaneLine& line : plan.lines) {
    const int rank = line.axis == 0 ? 0 : line_of(lines, line.axis).rank;
    shares.push_back({rank, lanes_here(line, plan, rank), gradient_levels(line, plan, options, rank)});
    levels.push_back(shares.back().levels.count);
    const int first = shares.front().rank;
    ENSURE(rank == line.rank_of(first), "rank {} of the first axis with lanes is rank {}, not {}, of axis {}",
           first, rank, line.rank_of(first), line.axis);
  }
  const std::vector<int64_t> begins = gradient_begins(plan, levels);
  for (size_t i = 0; i < shares.size(); ++i) shares[i].gradients_begin = begins[i];
  const BucketRing ring = bucket_ring(plan, options, shares);
  return {std::move(uses), options, std::move(lines), std::move(plan), std::move(shares), ring};
}

int64_t Layout::gradient_elements() const {
  if (options.weights_alone) return 0;
  return shares.back().gradients_begin + plan.lines.back().gradient_elements * shares.back().levels.count;
}

GroupBytes Layout::group_bytes(int g) const {
  return sharding::group_bytes(plan, g, options, lines,
                               {.own = group(g).own(share_of(g).rank),
                                .blocks = group(g).own_blocks(share_of(g).rank),
                                .levels = plan.owner.levels.count});
}

ShardingBytes Layout::bytes() const { return bytes_of(plan, options, lines, sharding::share_of(*this)); }

int64_t Layout::state_begin(int g) const {
  return options.zero_stage == 0 ? 0 : group(g).owner_begin[size_t(share_of(g).rank)];
}

int64_t Layout::state_block_begin(int g) const {
  return options.zero_stage == 0 ? 0 : group(g).block_begin[size_t(share_of(g).rank)];
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
