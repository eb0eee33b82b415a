// Causal self-attention:  x -> norm -> qkv -> (rope) -> attention -> proj
#pragma once
#include <optional>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// Sizes of the whole model. Q, K and V are one product, in this order.
struct AttentionPlan {
  enum Place { norm_weight, norm_bias, qkv_weight, qkv_bias, proj_weight, proj_bias };
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::optional<Rotary> rotary;
  NormPlan norm;
  std::vector<ParamDeclaration>
      parameters;  ///< in the order of the checkpoint's names; each declares its place

  static constexpr const char* kName = "attention";
  bool operator==(const AttentionPlan&) const = default;
  kernels::AttentionShape shape(const LayerShape&) const;  ///< on one rank
  std::vector<TensorDeclaration> tensors(const LayerShape&) const;
  void widen(Widest&, const LayerShape&) const;
  /// The plan must outlive the sublayer. of_layer: the tensors of Life::layer.
  std::unique_ptr<Sublayer> make(const LayerContext&, const SublayerUses&, const Tensors& of_layer) const;
};

}  // namespace trainctl
