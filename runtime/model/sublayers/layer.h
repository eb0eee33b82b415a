// LayerPlan is one layer as a value: its sublayers in forward order. Layer runs it on one rank.
#pragma once
#include <memory>
#include <variant>
#include <vector>

#include "runtime/model/sublayers/attention.h"
#include "runtime/model/sublayers/latent_attention.h"
#include "runtime/model/sublayers/mlp.h"
#include "runtime/model/sublayers/moe.h"

namespace trainctl {

/// A kind of sublayer: a word here, a header and a file of this folder.
using SublayerPlan = std::variant<AttentionPlan, LatentAttentionPlan, MlpPlan, MoePlan>;

struct LayerPlan {
  std::vector<SublayerPlan> sublayers;
  Precision precision;
  bool operator==(const LayerPlan&) const = default;
};
/// Equal layers of a model share one value, so that they are equal exactly where the pointers are.
using LayerRef = std::shared_ptr<const LayerPlan>;

/// What every kind of sublayer has.
const std::vector<ParamDeclaration>& parameters_of(const SublayerPlan&);
const char* name_of(const SublayerPlan&);
std::vector<TensorDeclaration> tensors_of(const SublayerPlan&, const LayerShape&);
/// The layer's mixture of experts; null: it has none.
const MoePlan* experts_of(const LayerPlan&);
void widen(Widest&, const LayerPlan&, const LayerShape&);

/// A layer of one rank: runs its sublayers in order, by the contracts of Sublayer. `t`: one element for
/// each sublayer.
class Layer {
 public:
  /// `plan` must outlive the layer.
  Layer(const LayerPlan& plan, const std::vector<SublayerUses>& uses, const LayerContext& context,
        const std::vector<Tensors>& of_layer);

  void pack(const LayerContext&);
  /// The stream behind the layer is t.back()[kInput] + the result.
  kernels::Matrix forward(const LayerContext&, std::vector<Tensors>& t, kernels::Matrix previous,
                          kernels::Matrix delta);
  /// From the first sublayer's input alone.
  void recompute(const LayerContext&, std::vector<Tensors>& t);
  void recompute_cheap(const LayerContext&, std::vector<Tensors>& t);
  void backward_input(const LayerContext&, std::vector<Tensors>& t, kernels::Matrix dout, kernels::Matrix din,
                      LanePlace);
  void backward_weight(const LayerContext&, std::vector<Tensors>& t, LanePlace);

 private:
  std::vector<std::unique_ptr<Sublayer>> sublayers_;
};

}  // namespace trainctl
