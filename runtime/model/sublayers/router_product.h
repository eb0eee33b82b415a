// The product of a router, or of another part that gives each token a few numbers: in f32, whatever
// activations are.
#pragma once
#include <memory>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

class RouterProduct {
 public:
  /// bias: its use, or -1.
  RouterProduct(const LayerContext& c, int weight, int bias, int64_t outputs)
      : weight_(weight), bias_(bias), packed_(c.backend.make_packed(outputs, c.shape.hidden, DType::f32)) {}

  void pack(const LayerContext& c);
  /// x f32 [M, C] -> logits f32 [M, outputs]
  void forward(const LayerContext& c, kernels::Matrix x, kernels::Matrix logits) const;
  /// dx [M, C] of activations += dlogits w. own, copy: scratch, f32 [M, C]; copy only where activations are
  /// not f32.
  void backward_input(const LayerContext& c, kernels::Matrix dlogits, kernels::Matrix own,
                      kernels::Matrix copy, kernels::Matrix dx) const;
  void backward_weight(const LayerContext& c, kernels::Matrix dlogits, kernels::Matrix x, LanePlace at) const;

 private:
  int weight_, bias_;
  std::unique_ptr<kernels::PackedWeight> packed_;
};

}  // namespace trainctl
