// Where the optimizer's state lies that is in a file.
#include <algorithm>

#include "parallel/bucket_plan.h"
#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {
namespace {

/// Of a chunk, with the gaps between its rows.
uint64_t state_bytes(const StateRows& rows, const FlatChunk& c) {
  uint64_t bytes = 0;
  for (const StateRow& row : rows)
    bytes += align_up(row.own_bytes(c.where.global.count(), kernels::moment_blocks(c.where.global.count())));
  return bytes;
}

}  // namespace

StateHome home_of(const GroupKey& key, const ShardingOptions& options) {
  const bool moves = key.states.has(StateRole::first_moment) && !key.states.has_matrices();
  return moves ? options.state_home : StateHome::memory;
}

size_t largest_state_part(const Plan& plan, const ShardingOptions& options) {
  size_t of_rank = 0, largest = 0;
  for (const GroupPlan& group : plan.groups) {
    if (home_of(group.key, options) != StateHome::file) continue;
    const size_t ranks = options.zero_stage > 0 ? size_t(plan.lines[size_t(group.line)].ranks) : 1;
    of_rank += group.key.states.bytes(group.size(), group.blocks()) / ranks;
    for (const FlatChunk& c : group.chunks)
      largest = std::max<size_t>(largest, state_bytes(group.key.states, c));
  }
  return std::max(largest, std::min(StatePlaces::kPartBytes, of_rank / StatePlaces::kFewestParts));
}

StatePlaces place_states(const Layout& layout) {
  const std::vector<OwnedChunk> owned = layout.owned_chunks();
  StatePlaces places;
  places.rows.resize(owned.size());
  uint64_t end = 0;
  const auto round_up = [](uint64_t n) {
    return (n + StatePlaces::kAligned - 1) / StatePlaces::kAligned * StatePlaces::kAligned;
  };
  for (size_t i = 0; i < owned.size(); ++i) {
    const StateRows& rows = layout.group(owned[i].group).key.states;
    const bool in_file = home_of(layout.group(owned[i].group).key, layout.options) == StateHome::file;
    const FlatChunk& chunk = owned[i].chunk;
    const bool joins =
        !places.parts.empty() && places.parts.back().in_file == in_file &&
        (!in_file || end - places.begins.back() + state_bytes(rows, chunk) <= layout.plan.state_part);
    if (!joins) {
      if (in_file) places.begins.push_back(end = round_up(end));
      places.parts.push_back({.begin = i, .end = i, .in_file = in_file});
    }
    places.parts.back().end = i + 1;
    if (!in_file) continue;
    const int64_t elements = chunk.where.global.count();
    for (const StateRow& row : rows) {
      places.rows[i].push_back(end);
      end += align_up(row.own_bytes(elements, kernels::moment_blocks(elements)));
    }
  }
  if (!places.begins.empty()) places.begins.push_back(round_up(end));
  return places;
}

}  // namespace trainctl::parallel::sharding
