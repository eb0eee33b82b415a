// Self-attention:  x -> norm -> qkv (and gate) -> norm of q and k -> rope -> attention -> gate -> proj -> norm,
// of which all but qkv, attention and proj may be missing.
#pragma once
#include <optional>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// Sizes of the whole model. Q, K, V and the gate are one product, in this order.
struct AttentionPlan {
  enum Place {
    norm_weight,
    norm_bias,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    q_norm,
    k_norm,
    after_weight,
    after_bias,
    scalars  ///< of heads: one for each
  };
  static constexpr int place_of(kernels::HeadScalar scalar) { return scalars + int(scalar); }
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;     ///< of the product of a query and a key
  float cap = 0;       ///< of a score: cap * tanh(score / cap); 0: none
  int64_t window = 0;  ///< a query sees itself and the window - 1 tokens before it; 0: all
  bool gated = false;  ///< the output is multiplied by the sigmoid of the gate
  QkNorm qk_norm = QkNorm::none;
  NormPlan qk;  ///< RMSNorm of queries and keys
  std::optional<Rotary> rotary;
  std::optional<NormPlan> norm, norm_after;
  Fp8Plan fp8;
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
