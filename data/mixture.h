// How a mixture interleaves its sources: the n-th sample's source as a function of n, without a history.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trainctl::data {

/// Weighted interleaving with random access. Thread-safe after construction.
///
/// The sources are the leaves of a binary tree. A node that has been visited n times has sent floor(n * share + 1/2) of
/// them left, the rest right; so a sample's way down, and how often each node was visited before, is integer arithmetic.
/// A node is off by at most 1/2 and hands its share of that down: after any n samples a source i has been used within
///
///     (1 + sum over inner nodes a above i, root excluded, of weight(i) / weight(a)) / 2
///
/// of n * weight(i) / sum(weights). The tree is the one with the least bound for up to five sources (below 1 for up to
/// four: two levels), beyond that Huffman's, where weights above a leaf grow like Fibonacci numbers: below 1.7.
class Mixture {
 public:
  /// Weights >= 0, their sum > 0; a source of weight 0 is never used.
  explicit Mixture(std::span<const double> weights);

  struct Pick {
    int source;
    uint64_t position;  ///< samples taken from this source before
  };
  Pick pick(uint64_t index) const;
  /// The bound above, of the worst source.
  double deviation_bound() const;

 private:
  struct Node {
    int source = -1;            ///< of a leaf, else -1
    int left = -1, right = -1;  ///< of an inner node
    double weight = 0;
    uint64_t left_share = 0;    ///< of 2^64
  };
  int join(int left, int right);
  void huffman_tree(std::vector<int> open);
  void best_tree(const std::vector<int>& open, double& least, std::vector<Node>& best);
  double bound_below(int node, double inverse_weights_above, bool is_root) const;

  std::vector<Node> nodes_;  ///< the root is last
};

}  // namespace trainctl::data
