#include "runtime/model/sublayers/mlp.h"

#include <algorithm>

#include "runtime/model/sublayers/ffn_activation.h"
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {
namespace {

using kernels::Matrix;

enum MlpNumber {
  kUp = kFirstAfterNorm, kAct,   // [M, U] [M, F]
  kUpGradient, kActGradient,     // [M, U] [M, F]
  kUpBias, kDownBias
};

/// F and U.
struct MlpSizes {
  int64_t ffn = 0, up = 0;
};
MlpSizes sizes_of(const MlpPlan& plan, const LayerShape& s) {
  const int64_t ffn = plan.ffn / s.tensor;
  return {ffn, is_gated(plan.activation) ? 2 * ffn : ffn};
}

class Mlp : public Sublayer {
 public:
  Mlp(const MlpPlan& plan, const LayerContext& c, const SublayerUses& uses, const Tensors& of_layer)
      : plan_(plan),
        activation_(plan.activation, plan.limit),
        sizes_(sizes_of(plan, c.shape)),
        norm_(plan.norm, uses, kNormNumbers),
        up_(c, uses.use(plan.up_weight), uses.use(plan.up_bias), sizes_.up, c.shape.hidden, of_layer[kUpBias],
            ProductFormat(plan.fp8, plan.fp8.keeps_in)),
        down_(c, uses.use(plan.down_weight), uses.use(plan.down_bias), c.shape.hidden, sizes_.ffn,
              of_layer[kDownBias], ProductFormat(plan.fp8, plan.fp8.keeps_out)),
        exit_(plan.norm_after, uses, kExitNumbers, {plan.after_weight, plan.after_bias}) {}

  void pack(const LayerContext& c) override {
    up_.pack(c);
    down_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    activated(c, t, previous, delta);
    c.backend.run(c.stream, kernels::LinearForward{.x = down_.seen(c, t, t[kAct]),
                                                   .w = &down_.weight(c, t),
                                                   .bias = down_.bias_once(c),
                                                   .y = exit_.part(c, t)});
    return exit_.forward(c, t);
  }

  void recompute(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    if (exit_.keeps())
      forward(c, t, previous, delta);
    else
      activated(c, t, previous, delta);
  }

  void recompute_cheap(const LayerContext& c, Tensors& t) override {
    norm_.apply(c, t);
    if (!is_fused()) activate(c, t);
  }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    exit_.backward_input(c, t, dout, at);
    const Matrix dy = down_.seen_gradient(c, t, t[size_t(exit_.gradient())]), dup = t[kUpGradient];
    if (is_fused()) {
      c.backend.run(c.stream, kernels::LinearGeluBackwardInput{
                                  .dy = dy, .w = &down_.weight_of_gradient(c, t), .pre = t[kUp], .dx = dup});
    } else {
      c.backend.run(c.stream, kernels::LinearBackwardInput{
                                  .dy = dy, .w = &down_.weight_of_gradient(c, t), .dx = t[kActGradient]});
      activate_backward(c, t);
    }
    c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = up_.seen_gradient(c, t, dup),
                                                         .w = &up_.weight_of_gradient(c, t),
                                                         .dx = c.scratch.partial});
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    exit_.backward_weight(c, t, at);
    down_.backward_weight(c, t, t[size_t(exit_.gradient())], t[kAct], at);
    up_.backward_weight(c, t, t[kUpGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  /// GELU is computed within the product before it.
  bool is_fused() const { return plan_.activation == FfnActivation::gelu; }

  /// As far as the input of the last product.
  void activated(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
    norm_.forward(c, t, previous, delta);
    const Matrix x = up_.seen(c, t, t[kNorm]);
    if (is_fused()) {
      c.backend.run(c.stream,
                    kernels::LinearGeluForward{
                        .x = x, .w = &up_.weight(c, t), .bias = up_.bias(c), .pre = t[kUp], .y = t[kAct]});
      return;
    }
    c.backend.run(c.stream,
                  kernels::LinearForward{.x = x, .w = &up_.weight(c, t), .bias = up_.bias(c), .y = t[kUp]});
    activate(c, t);
  }

  void activate(const LayerContext& c, Tensors& t) const { activation_.forward(c, t[kUp], t[kAct]); }
  void activate_backward(const LayerContext& c, Tensors& t) const {
    activation_.backward(c, t[kUp], t[kActGradient], t[kUpGradient]);
  }

  const MlpPlan& plan_;
  const FfnStep activation_;
  const MlpSizes sizes_;
  EntryNorm norm_;
  Linear up_, down_;
  Exit exit_;
};

}  // namespace

std::vector<TensorDeclaration> MlpPlan::tensors(const LayerShape& s) const {
  const MlpSizes sizes = sizes_of(*this, s);
  // Gelu may be computed within the product, before the product is rounded: making it again could change a
  // bit, so it is kept.
  const bool is_fused = activation == FfnActivation::gelu;
  std::vector<TensorDeclaration> list = {
      {kInput, Life::input, s.compute, s.local_rows, s.hidden},
      {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
      {kUp, Life::activation, s.compute, s.rows, sizes.up, true},
      {kAct, is_fused ? Life::activation : Life::cheap, s.compute, s.rows, sizes.ffn, true},
      {kUpGradient, Life::gradient, s.compute, s.rows, sizes.up, true}};
  declare_fp8(list, s, *this, s.rows, s.hidden * std::max(sizes.up, sizes.ffn));
  EntryNorm::declare(list, s, kNormNumbers, norm);
  Exit::declare(list, s, kExitNumbers, norm_after);
  if (!is_fused) list.push_back({kActGradient, Life::scratch, s.compute, s.rows, sizes.ffn, true});
  if (declares(parameters, up_bias)) Linear::declare_bias(list, s, kUpBias, sizes.up);
  if (declares(parameters, down_bias)) Linear::declare_bias(list, s, kDownBias, s.hidden);
  return list;
}

void MlpPlan::widen(Widest& widest, const LayerShape& s) const {
  const MlpSizes sizes = sizes_of(*this, s);
  widest.columns = std::max({widest.columns, s.hidden, sizes.up});
  widest.depth = std::max({widest.depth, s.hidden, sizes.ffn});
}

std::unique_ptr<Sublayer> MlpPlan::make(const LayerContext& c, const SublayerUses& uses,
                                        const Tensors& of_layer) const {
  return std::make_unique<Mlp>(*this, c, uses, of_layer);
}

}  // namespace trainctl
