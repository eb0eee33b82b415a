#include "parallel/sharding_plan.h"

#include <bit>
#include <numeric>
#include <utility>

#include "parallel/communicator.h"
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

}  // namespace

bool shares_weight(const std::vector<ParamUse>& uses, const ParamUse& use) {
  return use.tie == ParamUse::tied_second &&
         std::any_of(uses.begin(), uses.end(), [](const ParamUse& u) { return u.tie == ParamUse::tied_first; });
}

Plan make_plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
               const ShardingOptions& options, int dp) {
  Plan plan;
  ENSURE(std::has_single_bit(unsigned(options.lanes_per_rank)), "lanes per rank = {}", options.lanes_per_rank);
  plan.levels = std::bit_width(unsigned(options.lanes_per_rank));
  for (const ParamUse& use : uses) {
    const LocalShard shard = local_shard(use.layout, options.tp, options.tp_rank);
    Placement p{shard.rows, shard.cols};
    if (!use.joined) {
      plan.weight_bytes = align_up(plan.weight_bytes);
      plan.gradient_elements = int64_t(align_up(size_t(plan.gradient_elements) * 4) / 4);
    }
    p.weight_offset = plan.weight_bytes;
    p.gradient_offset = plan.gradient_elements;
    if (!shares_weight(uses, use)) plan.weight_bytes += size_t(p.rows * p.cols) * size_of(use.dtype);
    plan.gradient_elements += p.rows * p.cols;
    plan.places.push_back(p);
  }
  for (int u = int(uses.size()) - 1; u >= 0; --u) {
    const ParamUse& use = uses[size_t(u)];
    GroupPlan& group = plan.groups[group_of_use(use)];
    group.dtype = use.dtype;
    for (const LocalChunk& c :
         local_chunks(use.layout, use.param, grids[size_t(use.param)], options.tp, options.tp_rank))
      group.chunks.push_back({u, c, 0, 0});
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
  return plan;
}

bool adds_in_transport(int group, const ShardingOptions& options, int dp) {
  return options.fast_reduction && dp > 1 && (group != replicated || options.tp == 1);
}

bool packs_gradients(int group, int dp) { return dp > 1 || group == replicated_partial; }

}  // namespace sharding

ShardingBytes ShardedParams::plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                                  const ShardingOptions& options, int dp, int dp_rank, bool has_tied_peer) {
  using namespace sharding;
  const Plan plan = make_plan(uses, grids, options, dp);
  ShardingBytes bytes{plan.weight_bytes, size_t(plan.gradient_elements * plan.levels) * 4, 0, 0};
  const bool both = !plan.groups[tied_head].chunks.empty() && !plan.groups[tied_embedding].chunks.empty();
  for (int g = 0; g < kGroups; ++g) {
    const GroupPlan& group = plan.groups[g];
    if (group.chunks.empty()) continue;
    const int64_t own = group.own(dp_rank);
    const bool state = !(g == tied_head && both);
    if (state) {
      bytes.optimizer += 12 * size_t(options.zero_stage == 0 ? group.size() : own);
      bytes.state_boxes += std::count_if(group.chunks.begin(), group.chunks.end(), [&](const FlatChunk& c) {
        return options.zero_stage == 0 || c.owner == dp_rank;
      });
    }
    if (packs_gradients(g, dp)) bytes.communication += 4 * size_t(group.size());
    if (!adds_in_transport(g, options, dp)) bytes.communication += 4 * size_t(own) * size_t(dp - 1);
    if (dp > 1 && options.zero_stage > 0 && state) bytes.communication += size_t(group.size()) * size_of(group.dtype);
    if (g == replicated_partial && options.tp > 1)
      bytes.communication += all_reduce_scratch_bytes(options.tp, DType::f32,
                                                      options.zero_stage == 0 ? group.size() : group.largest_share());
    if (g >= tied_embedding && has_tied_peer) bytes.communication += 4 * size_t(own);
  }
  return bytes;
}

}  // namespace trainctl::parallel
