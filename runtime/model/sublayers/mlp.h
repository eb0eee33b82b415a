// The feed-forward part of a layer:  x -> norm -> up (and gate) -> activation -> down -> norm, of which the norms
// may be missing.
#pragma once
#include <optional>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// Sizes of the whole model.
struct MlpPlan {
  enum Place { norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias, after_weight, after_bias };
  int64_t ffn = 0;
  FfnActivation activation =
      FfnActivation::gelu;  ///< with a gate, gate and up are one product, in this order
  float limit = 0;          ///< of swiglu_clamped
  std::optional<NormPlan> norm, norm_after;
  Fp8Plan fp8;
  std::vector<ParamDeclaration>
      parameters;  ///< in the order of the checkpoint's names; each declares its place

  static constexpr const char* kName = "mlp";
  bool operator==(const MlpPlan&) const = default;
  std::vector<TensorDeclaration> tensors(const LayerShape&) const;
  void widen(Widest&, const LayerShape&) const;
  /// The plan must outlive the sublayer. of_layer: the tensors of Life::layer.
  std::unique_ptr<Sublayer> make(const LayerContext&, const SublayerUses&, const Tensors& of_layer) const;
};

}  // namespace trainctl
