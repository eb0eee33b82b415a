// A model whose layers differ.
#pragma once
#include "runtime/model/model_plan.h"

namespace trainctl::test {

inline LayerRef with_mlp(const LayerPlan& layer, int64_t ffn, bool gated) {
  LayerPlan changed = layer;
  auto& mlp = std::get<MlpPlan>(changed.sublayers[1]);
  mlp.ffn = ffn;
  mlp.activation = gated ? FfnActivation::swiglu : FfnActivation::gelu;
  std::vector<ParamDeclaration> kept;
  for (ParamDeclaration d : mlp.parameters) {
    if (d.joined && !gated) continue;  // the up projection beside the gate
    if (d.place == MlpPlan::up_weight) d.rows = ffn;
    if (d.place == MlpPlan::down_weight) d.cols = ffn;
    kept.push_back(std::move(d));
  }
  mlp.parameters = std::move(kept);
  return std::make_shared<const LayerPlan>(std::move(changed));
}

/// Four layers of a tiny Llama, of which the first two stay as they are.
inline ModelPlan unlike_layers(const JobSpec& job) {
  ModelPlan model = model_plan(job.model, job.compute);
  const LayerPlan& usual = *model.layers[0];
  LayerPlan slower = usual;
  std::get<AttentionPlan>(slower.sublayers[0]).rotary->theta = 500;
  model.layers.at(2) = with_mlp(slower, 24, false);
  LayerPlan unturned = usual;
  std::get<AttentionPlan>(unturned.sublayers[0]).rotary.reset();
  model.layers.at(3) = with_mlp(unturned, 120, true);
  return model;
}

}  // namespace trainctl::test
