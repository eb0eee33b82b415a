// Multi-head latent attention:  x -> norm -> down: [query latent | key latent | rope key] -> norm of each latent ->
// up: queries; keys and values of each head -> rope -> attention -> proj -> norm, of which the outer norms
// may be missing, and the query latent, too: then queries are one product of x. Keys and values come from few
// numbers a token; the part of keys that turns is one for all heads. Source: arXiv:2405.04434, section 2.1.
//
// Letters as in sublayer.h, and: D = N + R channels of a query and of a key, of which the last R turn; W
// channels of a value; Lq, Lk the widths of the latents; A = H D, P = H W.
//
// Tensor parallelism cuts what has heads. The down product, its weights and the norms of the latents are
// whole on each rank; a rank's gradients of them are those through its own heads, parts of one sum over the
// ranks.
#pragma once
#include <optional>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// Sizes of the whole model.
struct LatentAttentionPlan {
  /// down_weight: that of the query latent, if there is one, then that of keys, one taller matrix.
  /// query_weight: of the query latent, or of x. key_value_weight: of each head its key, then its value.
  enum Place {
    norm_weight,
    norm_bias,
    down_weight,
    query_norm,
    key_norm,
    query_weight,
    key_value_weight,
    proj_weight,
    after_weight,
    after_bias
  };
  int64_t heads = 0;
  int64_t query_latent = 0, key_latent = 0;  ///< query_latent 0: none
  int64_t own_dim = 0, rope_dim = 0, value_dim = 0;
  float scale = 1;     ///< of the product of a query and a key
  float cap = 0;       ///< as of AttentionPlan
  int64_t window = 0;  ///< as of AttentionPlan
  NormPlan latent;     ///< of both latents
  std::optional<Rotary> rotary;
  std::optional<NormPlan> norm, norm_after;
  Fp8Plan fp8;
  std::vector<ParamDeclaration> parameters;  ///< each declares its place

  static constexpr const char* kName = "latent attention";
  bool operator==(const LatentAttentionPlan&) const = default;
  int64_t head_dim() const { return own_dim + rope_dim; }
  kernels::AttentionShape shape(const LayerShape&) const;  ///< on one rank
  std::vector<TensorDeclaration> tensors(const LayerShape&) const;
  void widen(Widest&, const LayerShape&) const;
  /// The plan must outlive the sublayer. of_layer: the tensors of Life::layer.
  std::unique_ptr<Sublayer> make(const LayerContext&, const SublayerUses&, const Tensors& of_layer) const;
};

}  // namespace trainctl
