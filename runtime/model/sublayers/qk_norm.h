// RMSNorm of queries and keys: of each head, or of all heads of a token, whose squares are then added over the
// tensor ranks.
#pragma once
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {

class QkNorms {
 public:
  /// Numbers of its tensors: normed Q and K side by side [M, A + G D], their sums of squares and those of
  /// the gradient times them, each of Q, then of K [2 M, groups], and the gradients of its weights while they wait.
  struct Numbers {
    int out, sums, dots, q_gradient, k_gradient;
  };
  /// Columns of Q and K on a rank, channels of a head, ranks that the heads are cut over.
  struct Sizes {
    int64_t q = 0, k = 0, head_dim = 0, tensor = 1;
  };
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, QkNorm kind,
                      const Sizes& sizes, const Numbers& n);

  QkNorms(QkNorm kind, const NormPlan& plan, const Sizes& sizes, int q_weight, int k_weight, const Numbers& n)
      : kind_(kind), plan_(plan), sizes_(sizes), weights_{q_weight, k_weight}, n_(n) {}
  bool exists() const { return kind_ != QkNorm::none; }
  kernels::Matrix q(const Tensors& t) const { return t[size_t(n_.out)].columns(0, sizes_.q); }
  kernels::Matrix k(const Tensors& t) const { return t[size_t(n_.out)].columns(sizes_.q, sizes_.k); }
  /// From Q and K as the product leaves them.
  void forward(const LayerContext& c, Tensors& t, kernels::Matrix q, kernels::Matrix k) const;
  /// The gradients of normed Q and K become those of Q and K, in place.
  void backward_input(const LayerContext& c, Tensors& t, kernels::Matrix q, kernels::Matrix k,
                      kernels::Matrix dq, kernels::Matrix dk, LanePlace at) const;
  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const;

 private:
  /// Half i of what `all` holds for Q and K: [M, groups], contiguous.
  static float* half(const Tensors& t, int all, int i);
  int64_t group(int i) const {
    return kind_ == QkNorm::head ? sizes_.head_dim : i == 0 ? sizes_.q : sizes_.k;
  }
  int64_t count(int i) const { return kind_ == QkNorm::head ? sizes_.head_dim : group(i) * sizes_.tensor; }
  /// A projection's sums go over all tensor ranks.
  void add_over_ranks(const LayerContext& c, kernels::Matrix sums) const;

  QkNorm kind_;
  NormPlan plan_;
  Sizes sizes_;
  int weights_[2];
  Numbers n_;
};

}  // namespace trainctl
