// SharedHeads: keys and values where a KV head has several tensor ranks, as grouped-query attention has with
// more tensor ranks than KV heads.
//
// The weights stay cut into equal parts over all ranks, so that each of the `ranks` neighbours with one head
// computes some of its channels:
//
//   forward    each computes its channels, all of them bring them together     (an all-gather)
//   backward   each has the gradients of the whole head from its own queries;
//              the neighbours' are added, and each keeps its channels           (a reduce-scatter)
//
// Weights, their gradients, optimizer and checkpoints know nothing of it: no parameter is held twice. The
// other way is a copy of the head's weights on each neighbour, whose gradients are then parts of a sum: it
// sends 2 D C numbers once a step, where this one sends 2 D for each token, little next to the C that enter
// and leave the sublayer, but computes keys and values `ranks` times, and every part of the program that
// treats parameters would need a third kind of them beside cut and whole ones.
#pragma once
#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

class SharedHeads {
 public:
  /// Numbers of its tensors: K and V of the head side by side [M, 2 D], their gradients, and what is sent
  /// and received of either, the neighbours' parts one after another [ranks M, 2 D / ranks].
  struct Numbers {
    int heads, gradients, sent, received;
  };
  /// Ranks that have a KV head together; 1 where each has whole ones.
  static int64_t ranks_of(int64_t kv_heads, int64_t tensor) {
    return tensor > kv_heads ? tensor / kv_heads : 1;
  }
  /// head_dim: D. Declares nothing for one rank.
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, int64_t ranks,
                      int64_t head_dim, const Numbers& n);

  SharedHeads(int64_t ranks, int64_t head_dim, const Numbers& n) : ranks_(ranks), dim_(head_dim), n_(n) {}
  bool exists() const { return ranks_ > 1; }
  kernels::Matrix k(const Tensors& t) const { return t[size_t(n_.heads)].columns(0, dim_); }
  kernels::Matrix v(const Tensors& t) const { return t[size_t(n_.heads)].columns(dim_, dim_); }
  kernels::Matrix dk(const Tensors& t) const { return t[size_t(n_.gradients)].columns(0, dim_); }
  kernels::Matrix dv(const Tensors& t) const { return t[size_t(n_.gradients)].columns(dim_, dim_); }
  /// From this rank's channels of both [M, D / ranks] to k() and v().
  void gather(const LayerContext& c, const Tensors& t, kernels::Matrix k, kernels::Matrix v) const;
  /// From each rank's dk() and dv() to this rank's channels of their sums.
  void sum(const LayerContext& c, const Tensors& t, kernels::Matrix dk, kernels::Matrix dv) const;

 private:
  /// The part of K (which = 0) or V of a neighbour in `all`, as it is sent.
  kernels::Matrix part(const kernels::Matrix& all, int64_t neighbour, int which) const;

  int64_t ranks_, dim_;
  Numbers n_;
};

}  // namespace trainctl
