#include "ckpt/partners.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace trainctl::ckpt {
namespace {

constexpr size_t kNone = ~size_t(0);

/// Nodes by index, each with the data-parallel replicas of its ranks in ascending order.
struct Placement {
  std::vector<int> nodes;
  std::vector<std::vector<int>> replicas;

  bool are_apart(size_t a, size_t b) const {
    const std::vector<int>&x = replicas[a], &y = replicas[b];
    for (size_t i = 0, j = 0; i < x.size() && j < y.size();) {
      if (x[i] == y[j]) return false;
      x[i] < y[j] ? ++i : ++j;
    }
    return true;
  }
};

Placement placement_of(const parallel::MeshShape& shape, const std::vector<int>& node_of_rank) {
  std::map<int, std::set<int>> replicas;
  for (int rank = 0; rank < shape.world_size(); ++rank)
    replicas[node_of_rank[size_t(rank)]].insert(parallel::position_of(shape, rank).dp);
  Placement result;
  for (const auto& [node, held] : replicas) {
    result.nodes.push_back(node);
    result.replicas.emplace_back(held.begin(), held.end());
  }
  return result;
}

/// The largest matching of nodes to holders that are apart (augmenting paths). Holders are tried from half
/// way round, so that on an ordinary placement the first try fits and partners are far away from each other.
class Matching {
 public:
  explicit Matching(const Placement& placement)
      : placement_(placement), count_(placement.nodes.size()), holder_(count_, kNone), held_(count_, kNone) {
    std::vector<bool> dead(
        count_, false);  // holders from which no path leads on; they stay so once a search has failed
    for (size_t node = 0; node < count_; ++node) {
      std::vector<bool> seen = dead;
      if (!find_path(node, seen)) dead = seen;
    }
  }
  /// By node: its holder; kNone: it has none.
  const std::vector<size_t>& holder() const { return holder_; }
  const std::vector<size_t>& held() const { return held_; }
  int64_t looks() const { return looks_; }

 private:
  /// Breadth first: paths stay short, and nothing recurses as deep as there are nodes.
  bool find_path(size_t start, std::vector<bool>& seen) {
    std::vector<size_t> queue{start},
        came_from(count_, kNone);  // came_from: by holder, the node that reached it
    for (size_t at = 0; at < queue.size(); ++at) {
      const size_t node = queue[at];
      for (size_t k = 0; k < count_; ++k) {
        ++looks_;
        const size_t candidate = (node + count_ / 2 + k) % count_;
        if (seen[candidate] || !placement_.are_apart(node, candidate)) continue;
        seen[candidate] = true;
        came_from[candidate] = node;
        if (held_[candidate] == kNone) return take_path(candidate, came_from), true;
        queue.push_back(held_[candidate]);
      }
    }
    return false;
  }
  void take_path(size_t end, const std::vector<size_t>& came_from) {
    for (size_t candidate = end; candidate != kNone;) {
      const size_t node = came_from[candidate], before = holder_[node];
      holder_[node] = candidate;
      held_[candidate] = node;
      candidate = before;
    }
  }

  const Placement& placement_;
  const size_t count_;
  std::vector<size_t> holder_, held_;
  int64_t looks_ = 0;
};

/// Gives each remaining node a free holder other than itself.
void complete(const Placement& placement, const Matching& matching, std::vector<size_t>& holder) {
  std::vector<size_t> without, free;
  for (size_t i = 0; i < holder.size(); ++i) {
    if (holder[i] == kNone) without.push_back(i);
    if (matching.held()[i] == kNone) free.push_back(i);
  }
  // Both ascend. Nodes that are in both lists stand first in the same order, so that a turn by one leaves
  // none with itself.
  const auto in = [](const std::vector<size_t>& list, size_t i) {
    return std::binary_search(list.begin(), list.end(), i);
  };
  const std::vector<size_t> all_without = without, all_free = free;
  std::stable_partition(without.begin(), without.end(), [&](size_t i) { return in(all_free, i); });
  std::stable_partition(free.begin(), free.end(), [&](size_t i) { return in(all_without, i); });
  for (size_t i = 0; i < without.size(); ++i) holder[without[i]] = free[(i + 1) % free.size()];
  if (without.size() != 1 || without[0] != free[0]) return;
  // One node would hold its own: it exchanges holders with the node for which this costs the fewest pairs
  // that are apart.
  const size_t alone = without[0];
  size_t best = kNone;
  int best_gain = -1;
  for (size_t other = 0; other < holder.size(); ++other) {
    if (other == alone) continue;
    const int gain = int(placement.are_apart(alone, holder[other])) + int(placement.are_apart(other, alone)) -
                     int(placement.are_apart(other, holder[other])) + 1;
    if (gain > best_gain) best = other, best_gain = gain;
  }
  std::swap(holder[alone], holder[best]);
}

std::string first_few(const std::vector<int>& nodes) {
  constexpr size_t kShown = 4;
  const auto last = nodes.begin() + ptrdiff_t(std::min(nodes.size(), kShown));
  return fmt::format("{}{}", fmt::join(nodes.begin(), last, ", "), nodes.size() > kShown ? ", ..." : "");
}

}  // namespace

Partners place_partners(const parallel::MeshShape& shape, const std::vector<int>& node_of_rank) {
  ENSURE(node_of_rank.size() == size_t(shape.world_size()), "{} places for {} ranks", node_of_rank.size(),
         shape.world_size());
  const Placement placement = placement_of(shape, node_of_rank);
  Partners result;
  if (placement.nodes.size() < 2) {
    result.problem = fmt::format(
        "{} on one node: no other node can hold a copy of its memory",
        shape.world_size() == 1 ? "the only rank is" : fmt::format("all {} ranks are", shape.world_size()));
    result.weakness = result.problem;
    return result;
  }
  const Matching matching(placement);
  std::vector<size_t> holder = matching.holder();
  result.looks = matching.looks();
  complete(placement, matching, holder);
  for (size_t i = 0; i < holder.size(); ++i) {
    result.partner[placement.nodes[i]] = placement.nodes[holder[i]];
    if (!placement.are_apart(i, holder[i])) result.same_replica.push_back(placement.nodes[i]);
  }
  if (shape.dp == 1)
    result.weakness = "the job has one data-parallel replica: there is no other to hold its copies";
  else if (!result.same_replica.empty())
    result.weakness = fmt::format(
        "{} of {} have their copy within one of their own data-parallel replicas ({}): on this placement no "
        "more pairs of nodes are apart",
        result.same_replica.size(), count_of(int64_t(holder.size()), "node"), first_few(result.same_replica));
  return result;
}

}  // namespace trainctl::ckpt
