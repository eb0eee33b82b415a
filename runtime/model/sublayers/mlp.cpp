#include "runtime/model/sublayers/mlp.h"

#include <algorithm>

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
  return {ffn, plan.gated ? 2 * ffn : ffn};
}

class Mlp : public Sublayer {
 public:
  Mlp(const MlpPlan& plan, const LayerContext& c, const SublayerUses& uses, const Tensors& of_layer)
      : sizes_(sizes_of(plan, c.shape)),
        gated_(plan.gated),
        norm_(plan.norm, uses, kNormNumbers),
        up_(c, uses.use(plan.up_weight), uses.use(plan.up_bias), sizes_.up, c.shape.hidden,
            of_layer[kUpBias]),
        down_(c, uses.use(plan.down_weight), uses.use(plan.down_bias), c.shape.hidden, sizes_.ffn,
              of_layer[kDownBias]) {}

  void pack(const LayerContext& c) override {
    up_.pack(c);
    down_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    recompute(c, t, previous, delta);
    c.backend.run(c.stream, kernels::LinearForward{.x = t[kAct], .w = &down_.packed(),
                                                   .bias = down_.bias_once(c), .y = c.scratch.partial});
    return c.tp.leave(c.scratch.partial, c.scratch.local);
  }

  void recompute(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    norm_.forward(c, t, previous, delta);
    if (!gated_) {
      c.backend.run(c.stream, kernels::LinearGeluForward{.x = t[kNorm], .w = &up_.packed(),
                                                         .bias = up_.bias(c), .pre = t[kUp], .y = t[kAct]});
      return;
    }
    c.backend.run(c.stream, kernels::LinearForward{.x = t[kNorm], .w = &up_.packed(), .bias = up_.bias(c),
                                                   .y = t[kUp]});
    swiglu(c, t);
  }

  void recompute_cheap(const LayerContext& c, Tensors& t) override {
    norm_.apply(c, t);
    if (gated_) swiglu(c, t);
  }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    keep_output_gradient(c, t, dout);
    const Matrix dy = t[kOutputGradient], dup = t[kUpGradient];
    const int64_t f = sizes_.ffn;
    if (gated_) {
      c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = dy, .w = &down_.packed(),
                                                           .dx = t[kActGradient]});
      c.backend.run(c.stream, kernels::GatedBackward{.gate = t[kUp].columns(0, f),
                                                     .up = t[kUp].columns(f, f),
                                                     .dy = t[kActGradient],
                                                     .dgate = dup.columns(0, f),
                                                     .dup = dup.columns(f, f)});
    } else {
      c.backend.run(c.stream, kernels::LinearGeluBackwardInput{.dy = dy, .w = &down_.packed(), .pre = t[kUp],
                                                               .dx = dup});
    }
    c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = dup, .w = &up_.packed(),
                                                         .dx = c.scratch.partial});
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    down_.backward_weight(c, t[kOutputGradient], t[kAct], at);
    up_.backward_weight(c, t[kUpGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  void swiglu(const LayerContext& c, Tensors& t) const {
    const int64_t f = sizes_.ffn;
    c.backend.run(c.stream, kernels::GatedForward{
                                .gate = t[kUp].columns(0, f), .up = t[kUp].columns(f, f), .y = t[kAct]});
  }

  const MlpSizes sizes_;
  const bool gated_;
  EntryNorm norm_;
  Linear up_, down_;
};

}  // namespace

std::vector<TensorDeclaration> MlpPlan::tensors(const LayerShape& s) const {
  const MlpSizes sizes = sizes_of(*this, s);
  // Gelu may be computed within the product, before the product is rounded: making it again could change a
  // bit, so it is kept.
  std::vector<TensorDeclaration> list = {
      {kInput, Life::input, s.compute, s.local_rows, s.hidden},
      {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
      {kUp, Life::activation, s.compute, s.rows, sizes.up, true},
      {kAct, gated ? Life::cheap : Life::activation, s.compute, s.rows, sizes.ffn, true},
      {kUpGradient, Life::gradient, s.compute, s.rows, sizes.up, true}};
  EntryNorm::declare(list, s, kNormNumbers);
  if (gated) list.push_back({kActGradient, Life::scratch, s.compute, s.rows, sizes.ffn, true});
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
