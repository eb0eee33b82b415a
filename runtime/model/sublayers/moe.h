// The feed-forward part of a layer as a mixture of experts:  x -> norm -> router, and the k experts of each token
// (up and gate -> activation -> down) -> the sum of theirs by the router's weights, and of a shared expert ->
// norm, of which the norms and the shared expert may be missing. No token is dropped, or with a capacity
// those that are over it. Experts are shared out over ranks (expert_rows.h), and may work in a latent
// (latent_experts.h); tensor parallelism cuts each one as it cuts an Mlp, or shares whole ones out, too. The
// router's losses and the bias that balances experts follow from what it has chosen, with what is dropped.
//
// Letters: E experts, R rows in the order of experts (kernels/moe_ops.h), M k at most, N rows of the experts
// here, F the width of one expert, or of this rank's part, L that of a token at its experts.
#pragma once
#include <algorithm>
#include <optional>

#include "kernels/moe_ops.h"
#include "runtime/model/sublayers/expert_rows.h"
#include "runtime/model/sublayers/shared_expert.h"

namespace trainctl {

/// The tokens whose use of experts the auxiliary loss evens out: those of a sequence, or of a chunk where
/// sequences are cut, so that each is on one rank. A pass without training may have fewer.
inline int64_t route_tokens(const LayerShape& s) {
  return std::min(s.rows, s.cut.exists() ? s.cut.chunk_tokens() : s.seq_len);
}

/// Sizes of the whole model.
struct MoePlan {
  /// up_weight: of all experts, one taller matrix; so is down_weight.
  enum Place {
    norm_weight,
    norm_bias,
    router_weight,
    up_weight,
    down_weight,
    after_weight,
    after_bias,
    selection_bias,  ///< its gradient: the counts of experts
    router_bias,
    up_bias,  ///< of all experts, one after another; so is down_bias
    down_bias,
    shared_up_weight,
    shared_down_weight,
    shared_gate,
    latent_in,
    latent_out
  };
  int64_t experts = 0, top_k = 0, ffn = 0;
  FfnActivation activation = FfnActivation::swiglu;
  float limit = 0;  ///< of swiglu_clamped
  kernels::Router router;
  SharedExpertPlan shared;
  float aux_loss = 0, z_loss = 0;  ///< coefficients
  double capacity_factor = 0;      ///< rows that an expert takes over the mean of all; 0: it takes all
  bool drops_by_weight = true;
  int64_t latent = 0;  ///< L; 0: C
  bool counts_margins = false;  ///< the selection bias follows from them (Margins)
  std::optional<NormPlan> norm, norm_after;
  Fp8Plan fp8;
  std::vector<ParamDeclaration> parameters;  ///< each declares its place

  static constexpr const char* kName = "moe";
  bool operator==(const MoePlan&) const = default;
  int64_t width_of_rows(const LayerShape& s) const { return latent > 0 ? latent : s.hidden; }
  /// An expert's capacity is capacity_factor * tokens of a source * k / E, rounded up: it does not depend on
  /// how many ranks there are. Without training that of a sequence is capacity_factor * its tokens * k / E.
  Dispatch dispatch(const LayerShape&) const;
  std::vector<TensorDeclaration> tensors(const LayerShape&) const;
  void widen(Widest&, const LayerShape&) const;
  /// The plan must outlive the sublayer. of_layer: the tensors of Life::layer.
  std::unique_ptr<Sublayer> make(const LayerContext&, const SublayerUses&, const Tensors& of_layer) const;
};

}  // namespace trainctl
