#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr size_t kMostForExhaustiveSearch = 5;  // 180 orders of joining

/// The number of n visits that went left: floor(n * share / 2^64 + 1/2), exact.
uint64_t left_of(uint64_t n, uint64_t share) {
  return uint64_t(((unsigned __int128)n * share + (uint64_t(1) << 63)) >> 64);
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) : sources_(weights.size()) {
  std::vector<int> leaves;
  for (size_t i = 0; i < weights.size(); ++i) {
    ENSURE(weights[i] >= 0 && std::isfinite(weights[i]), "weight {} of source {}", weights[i], i);
    if (weights[i] == 0) continue;
    leaves.push_back(int(nodes_.size()));
    nodes_.push_back({.source = int(i), .weight = weights[i]});
  }
  ENSURE(!leaves.empty(), "{} sources, all of weight 0", weights.size());
  if (leaves.size() > kMostForExhaustiveSearch) {
    huffman_tree(std::move(leaves));
    return;
  }
  double least = std::numeric_limits<double>::infinity();
  std::vector<Node> best;
  best_tree(leaves, least, best);
  nodes_ = std::move(best);
}

int Mixture::join(int left, int right) {
  const double sum = nodes_[size_t(left)].weight + nodes_[size_t(right)].weight;
  const double share = std::ldexp(nodes_[size_t(left)].weight / sum, 64);
  // With a share that rounds to 2^64 the right side would never be visited.
  const uint64_t fixed = share >= 0x1.0p64 ? std::numeric_limits<uint64_t>::max() : uint64_t(share);
  nodes_.push_back({.left = left, .right = right, .weight = sum, .left_share = fixed});
  return int(nodes_.size()) - 1;
}

void Mixture::huffman_tree(std::vector<int> open) {
  while (open.size() > 1) {
    // The lightest last; of equal weights the one made first, so that the tree does not depend on the sort.
    std::sort(open.begin(), open.end(), [&](int a, int b) {
      const double wa = nodes_[size_t(a)].weight, wb = nodes_[size_t(b)].weight;
      return wa != wb ? wa > wb : a > b;
    });
    const int lightest = open.back();
    open.pop_back();
    open.back() = join(lightest, open.back());
  }
}

void Mixture::best_tree(const std::vector<int>& open, double& least, std::vector<Node>& best) {
  if (open.size() == 1) {
    const double bound = deviation_bound();
    // Weights at the least of a double have no finite bound; a tree they need nonetheless.
    if (bound < least || best.empty()) {
      least = bound;
      best = nodes_;
    }
    return;
  }
  for (size_t a = 0; a < open.size(); ++a)
    for (size_t b = a + 1; b < open.size(); ++b) {
      std::vector<int> rest = open;
      rest.erase(rest.begin() + long(b));
      rest[a] = join(open[a], open[b]);
      best_tree(rest, least, best);
      nodes_.pop_back();
    }
}

double Mixture::bound_below(int node, double inverse_weights_above, bool is_root) const {
  const Node& n = nodes_[size_t(node)];
  if (n.source >= 0) return is_root ? 0 : (1 + n.weight * inverse_weights_above) / 2;
  const double inverse = is_root ? 0 : inverse_weights_above + 1 / n.weight;
  return std::max(bound_below(n.left, inverse, false), bound_below(n.right, inverse, false));
}

double Mixture::deviation_bound() const { return bound_below(int(nodes_.size()) - 1, 0, true); }

Mixture::Pick Mixture::pick(uint64_t index) const {
  const Node* node = &nodes_.back();
  while (node->source < 0) {
    const uint64_t went_left = left_of(index, node->left_share);
    const bool left = left_of(index + 1, node->left_share) > went_left;
    index = left ? went_left : index - went_left;
    node = &nodes_[size_t(left ? node->left : node->right)];
  }
  return {node->source, index};
}

void Mixture::count(int node, uint64_t visits, std::vector<uint64_t>& counts) const {
  const Node& n = nodes_[size_t(node)];
  if (n.source >= 0) {
    counts[size_t(n.source)] = visits;
    return;
  }
  const uint64_t went_left = left_of(visits, n.left_share);
  count(n.left, went_left, counts);
  count(n.right, visits - went_left, counts);
}

std::vector<uint64_t> Mixture::counts(uint64_t n) const {
  std::vector<uint64_t> counts(sources_);
  count(int(nodes_.size()) - 1, n, counts);
  return counts;
}

}  // namespace trainctl::data
