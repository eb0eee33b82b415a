#include "runtime/model/sublayers/shared_expert.h"

#include <algorithm>

namespace trainctl {
namespace {

using kernels::Matrix;

/// F and U of a rank.
std::pair<int64_t, int64_t> shared_sizes(int64_t ffn, int64_t tensor, bool has_two_inputs) {
  return {ffn / tensor, (has_two_inputs ? 2 : 1) * ffn / tensor};
}

}  // namespace

void SharedExpert::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, int first,
                           const SharedExpertPlan& plan, FfnActivation activation) {
  if (plan.ffn == 0) return;
  const auto [ffn, up] = shared_sizes(plan.ffn, s.tensor, is_gated(activation));
  const auto add = [&, first](Number number, Life life, DType dtype, int64_t cols, bool alone) {
    list.push_back({first + number, life, dtype, s.rows, cols, alone});
  };
  add(kUp, Life::activation, s.compute, up, true);
  add(kAct, Life::cheap, s.compute, ffn, true);
  add(kUpGradient, Life::gradient, s.compute, up, true);
  add(kOut, Life::scratch, s.compute, s.hidden, false);
  add(kActGradient, Life::scratch, s.compute, ffn, true);
  if (!plan.gated) return;
  add(kGate, Life::activation, DType::f32, 1, false);
  add(kGateGradient, Life::gradient, DType::f32, 1, false);
  add(kPlainAct, Life::scratch, s.compute, ffn, true);
}

void SharedExpert::widen(Widest& widest, const LayerShape& s, const SharedExpertPlan& plan,
                         FfnActivation activation) {
  const auto [ffn, up] = shared_sizes(plan.ffn, s.tensor, is_gated(activation));
  widest.columns = std::max(widest.columns, up);
  widest.depth = std::max(widest.depth, ffn);
}

SharedExpert::SharedExpert(const LayerContext& c, int first, const SharedExpertPlan& plan,
                           const FfnStep& activation, bool has_two_inputs, Weights weights,
                           const Fp8Plan& fp8)
    : first_(first),
      activation_(activation),
      up_(c, weights.up, -1, shared_sizes(plan.ffn, c.shape.tensor, has_two_inputs).second, c.shape.hidden,
          {}, ProductFormat(fp8, fp8.keeps_in)),
      down_(c, weights.down, -1, c.shape.hidden, plan.ffn / c.shape.tensor, {},
            ProductFormat(fp8, fp8.keeps_out)) {
  if (weights.gate >= 0) gate_.emplace(c, weights.gate, -1, 1);
}

void SharedExpert::pack(const LayerContext& c) {
  up_.pack(c);
  down_.pack(c);
  if (gate_) gate_->pack(c);
}

void SharedExpert::forward(const LayerContext& c, Tensors& t, Matrix x, Matrix x_f32,
                           bool makes_output) const {
  c.backend.run(c.stream,
                kernels::LinearForward{.x = up_.seen(c, t, x), .w = &up_.weight(c, t), .y = at(t, kUp)});
  if (gate_) gate_->forward(c, x_f32, at(t, kGate));
  recompute_cheap(c, t);
  if (makes_output)
    c.backend.run(c.stream,
                  kernels::LinearForward{
                      .x = down_.seen(c, t, at(t, kAct)), .w = &down_.weight(c, t), .y = at(t, kOut)});
}

void SharedExpert::add_output(const LayerContext& c, Tensors& t, Matrix sum) const {
  c.backend.run(c.stream, kernels::Add{.src = at(t, kOut), .dst = sum});
}

void SharedExpert::recompute_cheap(const LayerContext& c, Tensors& t) const {
  activation_.forward(c, at(t, kUp), at(t, gate_ ? kPlainAct : kAct));
  if (gate_)
    c.backend.run(c.stream,
                  kernels::GateRows{.x = at(t, kPlainAct), .logits = at(t, kGate), .y = at(t, kAct)});
}

void SharedExpert::backward_input(const LayerContext& c, Tensors& t, Matrix dy) const {
  const Matrix dact = at(t, kActGradient), dup = at(t, kUpGradient);
  c.backend.run(c.stream,
                kernels::LinearBackwardInput{
                    .dy = down_.seen_gradient(c, t, dy), .w = &down_.weight_of_gradient(c, t), .dx = dact});
  if (gate_) {
    activation_.forward(c, at(t, kUp), at(t, kPlainAct));
    c.backend.run(c.stream, kernels::GateRowsBackward{.x = at(t, kPlainAct),
                                                      .logits = at(t, kGate),
                                                      .dy = dact,
                                                      .dlogits = at(t, kGateGradient),
                                                      .dx = dact});
  }
  activation_.backward(c, at(t, kUp), dact, dup);
  c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = up_.seen_gradient(c, t, dup),
                                                       .w = &up_.weight_of_gradient(c, t),
                                                       .dx = at(t, kOut)});
}

void SharedExpert::add_gradient(const LayerContext& c, Tensors& t, Matrix own, Matrix copy, Matrix dx) const {
  c.backend.run(c.stream, kernels::Add{.src = at(t, kOut), .dst = dx});
  if (gate_) gate_->backward_input(c, at(t, kGateGradient), own, copy, dx);
}

void SharedExpert::backward_weight(const LayerContext& c, Tensors& t, Matrix dy, Matrix x, Matrix x_f32,
                                   LanePlace place) const {
  down_.backward_weight(c, t, dy, at(t, kAct), place);
  up_.backward_weight(c, t, at(t, kUpGradient), x, place);
  if (gate_) gate_->backward_weight(c, at(t, kGateGradient), x_f32, place);
}

}  // namespace trainctl
