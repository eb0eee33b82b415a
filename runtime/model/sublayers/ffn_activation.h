// The activation of a feed-forward part, of an input [rows, F], or of a gate and an input side by side [rows,
// 2 F].
#pragma once
#include <variant>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

class FfnStep {
 public:
  FfnStep(FfnActivation activation, float limit);
  /// in [rows, U] -> out [rows, F]
  void forward(const LayerContext& c, kernels::Matrix in, kernels::Matrix out) const;
  /// dout [rows, F] -> din [rows, U]
  void backward(const LayerContext& c, kernels::Matrix in, kernels::Matrix dout, kernels::Matrix din) const;

 private:
  std::variant<kernels::Activation, kernels::Gate> kind_;
  float limit_;
};

}  // namespace trainctl
