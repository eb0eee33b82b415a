// Mixture interleaves sources by weight. The source of the n-th sample is a function of n alone.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trainctl::data {

/// Weighted interleaving with random access. Thread-safe after construction.
///
/// The sources are the leaves of a binary tree. Of n visits, a node passes floor(n * share + 1/2) to its left
/// child and the rest to its right child. So the path of a sample, and the number of earlier visits of each
/// node, are integer arithmetic. Each node deviates by at most 1/2 and passes its child's share of the
/// deviation down. After any n samples, the number of samples of source i differs from n * weight(i) /
/// sum(weights) by at most
///
///     (1 + sum over inner nodes a above i, root excluded, of weight(i) / weight(a)) / 2
///
/// For up to five sources the tree is the one with the smallest bound (below 1 for up to four sources, with
/// two levels). For more sources it is Huffman's tree, in which the weights above a leaf grow like Fibonacci
/// numbers; its bound is below 1.7.
class Mixture {
 public:
  /// Weights >= 0 with a sum > 0. A source with weight 0 is never used.
  explicit Mixture(std::span<const double> weights);

  struct Pick {
    int source;
    uint64_t position;  ///< number of earlier samples from this source
  };
  Pick pick(uint64_t index) const;
  /// How many of the first n samples are of each source.
  std::vector<uint64_t> counts(uint64_t n) const;
  /// The largest bound of all sources.
  double deviation_bound() const;

 private:
  struct Node {
    int source = -1;            ///< a leaf's source; -1: an inner node
    int left = -1, right = -1;  ///< an inner node's children
    double weight = 0;
    uint64_t left_share = 0;    ///< share of the left child, times 2^64
  };
  int join(int left, int right);
  void huffman_tree(std::vector<int> open);
  void best_tree(const std::vector<int>& open, double& least, std::vector<Node>& best);
  double bound_below(int node, double inverse_weights_above, bool is_root) const;

  void count(int node, uint64_t visits, std::vector<uint64_t>& counts) const;

  std::vector<Node> nodes_;  ///< the root is last
  size_t sources_ = 0;
};

}  // namespace trainctl::data
