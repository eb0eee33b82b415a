// The width in which routed experts work where it is not the model's: one product brings each token to a
// latent before it is sent to its experts, another brings the sum of its experts back. So fewer bytes are
// sent, and experts are smaller. The router and a shared expert read and write the model's width. Source:
// LatentMoE of Nemotron 3, whose names the weights have (fc1_latent_proj, fc2_latent_proj).
//
//   latent = x W_in^T;  y = (sum of experts) W_out^T        x, y [M, C]; latent and the sum [M, L]
//
// Tensor ranks hold both weights whole: each has a part of the sum, and so of y.
#pragma once
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {

class LatentExperts {
 public:
  /// Numbers of its tensors: the first of kTensors that follow one another.
  static constexpr int kTensors = 4;
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, int first, int64_t width);

  /// Uses of the weights, or their places.
  struct Weights {
    int in, out;
  };
  static void declare_parameters(ParamList& list, int64_t hidden, int64_t width, Weights places);

  LatentExperts(const LayerContext& c, int first, int64_t width, Weights weights, const Fp8Plan& fp8)
      : first_(first),
        in_(c, weights.in, -1, width, c.shape.hidden, {}, ProductFormat(fp8, fp8.keeps_in)),
        out_(c, weights.out, -1, c.shape.hidden, width, {}, ProductFormat(fp8, fp8.keeps_out)) {}

  void pack(const LayerContext& c);
  /// What experts read, filled by `enter`; their sum, for `leave` to read; and the gradients of both: of the
  /// sum by `leave_backward`, of what they read for `enter_backward` to read.
  kernels::Matrix in(const Tensors& t) const { return t[size_t(first_ + kIn)]; }
  kernels::Matrix sum(const Tensors& t) const { return t[size_t(first_ + kSum)]; }
  kernels::Matrix in_gradient(const Tensors& t) const { return t[size_t(first_ + kInGradient)]; }
  kernels::Matrix sum_gradient(const Tensors& t) const { return t[size_t(first_ + kSumGradient)]; }

  void enter(const LayerContext& c, const Tensors& t, kernels::Matrix x) const;
  void leave(const LayerContext& c, const Tensors& t, kernels::Matrix y) const;
  void leave_backward(const LayerContext& c, const Tensors& t, kernels::Matrix dy) const;
  void enter_backward(const LayerContext& c, const Tensors& t, kernels::Matrix dx) const;
  void backward_weight(const LayerContext& c, const Tensors& t, kernels::Matrix dy, kernels::Matrix x,
                       LanePlace at) const;

 private:
  enum Number { kIn, kSum, kInGradient, kSumGradient };

  const int first_;
  Linear in_, out_;
};

}  // namespace trainctl
