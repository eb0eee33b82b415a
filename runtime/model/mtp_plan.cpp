#include "runtime/model/mtp_plan.h"

namespace trainctl {

std::vector<MtpPlan> mtp_plans(const ModelSpec& spec, const ModelPlan& model) {
  using M = MtpPlan;
  const LayerSpec& layer = spec.layer;
  const auto norm = [&](ParamList& list, const char* name, int weight, int bias) {
    list.norm({.name = name, .size = model.hidden, .one_plus = layer.norm_weight == NormWeight::one_plus},
              {weight, layer.norm_bias ? bias : -1});
  };
  M module{.before = {}, .after = {}, .layer = nullptr};
  ParamList before, after;
  norm(before, "hnorm", M::hidden_weight, M::hidden_bias);
  norm(before, "enorm", M::embedding_weight, M::embedding_bias);
  before.weight({.name = "eh_proj", .out = model.hidden, .in = 2 * model.hidden}, M::join_weight);
  norm(after, "shared_head.norm", M::out_weight, M::out_bias);
  module.before = before.take(), module.after = after.take();
  if (!model.layers.empty()) module.layer = model.layers.back();
  return {size_t(spec.mtp.num_layers), module};
}

}  // namespace trainctl
