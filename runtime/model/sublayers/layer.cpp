#include "runtime/model/sublayers/layer.h"

#include "runtime/base/error.h"

namespace trainctl {

using kernels::Matrix;

const std::vector<ParamDeclaration>& parameters_of(const SublayerPlan& sublayer) {
  return std::visit([](const auto& plan) -> const std::vector<ParamDeclaration>& { return plan.parameters; },
                    sublayer);
}
const char* name_of(const SublayerPlan& sublayer) {
  return std::visit([](const auto& plan) { return plan.kName; }, sublayer);
}
std::vector<TensorDeclaration> tensors_of(const SublayerPlan& sublayer, const LayerShape& shape) {
  return std::visit([&](const auto& plan) { return plan.tensors(shape); }, sublayer);
}
const MoePlan* experts_of(const LayerPlan& layer) {
  for (const SublayerPlan& sublayer : layer.sublayers)
    if (const auto* moe = std::get_if<MoePlan>(&sublayer)) return moe;
  return nullptr;
}
void widen(Widest& widest, const LayerPlan& layer, const LayerShape& shape) {
  for (const SublayerPlan& sublayer : layer.sublayers)
    std::visit([&](const auto& plan) { plan.widen(widest, shape); }, sublayer);
}

const float* LayerContext::cos_sin(const Rotary& rotary) const {
  for (const auto& [of, table] : rotary_tables)
    if (of == rotary) return table;
  ENSURE(false, "no table of rotary positions with theta {} and {} channels", rotary.theta, rotary.channels);
  return nullptr;
}

void LayerScratch::take(Arena& arena, const LayerShape& s) {
  partial = arena.take(s.compute, s.rows, s.hidden);
  local = arena.take(s.compute, s.local_rows, s.hidden);
  normed = arena.take(s.compute, s.local_rows, s.hidden);
}

Layer::Layer(const LayerPlan& plan, const std::vector<SublayerUses>& uses, const LayerContext& c,
             const std::vector<Tensors>& of_layer) {
  for (size_t i = 0; i < plan.sublayers.size(); ++i)
    sublayers_.push_back(
        std::visit([&](const auto& of) { return of.make(c, uses[i], of_layer[i]); }, plan.sublayers[i]));
}

void Layer::pack(const LayerContext& c) {
  for (const auto& sublayer : sublayers_) sublayer->pack(c);
}

// Buckets of the data-parallel group go on after each sublayer: once a layer is too seldom to hide their
// rounds.

Matrix Layer::forward(const LayerContext& c, std::vector<Tensors>& t, Matrix previous, Matrix delta) {
  for (size_t i = 0; i < sublayers_.size(); ++i) {
    delta = sublayers_[i]->forward(c, t[i], previous, delta);
    previous = t[i][kInput];
    c.params.go_on();
  }
  return delta;
}

void Layer::recompute(const LayerContext& c, std::vector<Tensors>& t) {
  Matrix previous, delta;
  for (size_t i = 0; i + 1 < sublayers_.size(); ++i) {
    delta = sublayers_[i]->forward(c, t[i], previous, delta);
    previous = t[i][kInput];
  }
  sublayers_.back()->recompute(c, t.back(), previous, delta);
}

void Layer::recompute_cheap(const LayerContext& c, std::vector<Tensors>& t) {
  for (size_t i = 0; i < sublayers_.size(); ++i) sublayers_[i]->recompute_cheap(c, t[i]);
}

void Layer::backward_input(const LayerContext& c, std::vector<Tensors>& t, Matrix dout, Matrix din,
                           LanePlace at) {
  for (size_t i = sublayers_.size(); i-- > 0;) {
    // Between two sublayers the gradient lies where the weight half of the earlier one will read it; where
    // rows are cut that one reads the entered copy.
    const Matrix to = i == 0 || c.tp.cuts_rows() ? din : t[i - 1][kOutputGradient];
    sublayers_[i]->backward_input(c, t[i], dout, to, at);
    dout = to;
    c.params.go_on();
  }
}

void Layer::backward_weight(const LayerContext& c, std::vector<Tensors>& t, LanePlace at) {
  for (size_t i = sublayers_.size(); i-- > 0;) {
    sublayers_[i]->backward_weight(c, t[i], at);
    c.params.go_on();
  }
}

}  // namespace trainctl
