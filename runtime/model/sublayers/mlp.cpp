// The feed-forward part of a layer:  x -> norm -> up -> gelu | swiglu -> down
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {
namespace {

using kernels::Matrix;
using parallel::Cut;

enum MlpPlace { up_weight = kFirstAfterNormPlaces, up_bias, down_weight, down_bias };
enum MlpNumber {
  kUp = kFirstAfterNorm, kAct,   // [M, U] [M, F]
  kUpGradient, kActGradient,     // [M, U] [M, F]
  kUpBias, kDownBias
};

std::vector<ParamDeclaration> mlp_parameters(const ModelSpec& m) {
  const int64_t h = m.hidden_size, f = m.ffn_size;
  ParamList list(m);
  if (m.family == Family::gpt2) {
    list.norm("ln_2", {norm_weight, norm_bias});
    list.linear({.name = "mlp.c_fc", .out = f, .in = h, .cut = Cut::rows}, {up_weight, up_bias});
    list.linear({.name = "mlp.c_proj", .out = h, .in = f, .cut = Cut::cols, .residual = true},
                {down_weight, down_bias});
  } else {
    list.norm("post_attention_layernorm", {norm_weight});
    list.linear({.name = "mlp.gate_proj", .out = f, .in = h, .cut = Cut::rows}, {up_weight});
    list.linear({.name = "mlp.up_proj", .out = f, .in = h, .cut = Cut::rows, .joined = true}, {up_weight});
    list.linear({.name = "mlp.down_proj", .out = h, .in = f, .cut = Cut::cols, .residual = true},
                {down_weight});
  }
  return list.take();
}

std::vector<TensorDeclaration> mlp_tensors(const LayerShape& s) {
  // Gelu may be computed within the product, before the product is rounded: making it again could change a
  // bit, so it is kept.
  std::vector<TensorDeclaration> list = {
      {kInput, Life::input, s.compute, s.local_rows, s.hidden},
      {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
      {kUp, Life::activation, s.compute, s.rows, s.up_cols(), true},
      {kAct, s.gated() ? Life::cheap : Life::activation, s.compute, s.rows, s.ffn, true},
      {kUpGradient, Life::gradient, s.compute, s.rows, s.up_cols(), true}};
  EntryNorm::declare(list, s, kNormNumbers);
  if (s.gated()) list.push_back({kActGradient, Life::scratch, s.compute, s.rows, s.ffn, true});
  if (s.biases()) {
    Linear::declare_bias(list, s, kUpBias, s.up_cols());
    Linear::declare_bias(list, s, kDownBias, s.hidden);
  }
  return list;
}

class Mlp : public Sublayer {
 public:
  Mlp(const LayerContext& c, const SublayerUses& uses, const Tensors& of_layer)
      : norm_(uses, norm_weight, norm_bias, kNormNumbers),
        up_(c, uses.use(up_weight), uses.use(up_bias), c.shape.up_cols(), c.shape.hidden, of_layer[kUpBias]),
        down_(c, uses.use(down_weight), uses.use(down_bias), c.shape.hidden, c.shape.ffn,
              of_layer[kDownBias]) {}

  void pack(const LayerContext& c) override {
    up_.pack(c);
    down_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    recompute(c, t, previous, delta);
    c.backend.linear_forward(c.stream, t[kAct], down_.packed(), down_.bias_once(c), c.scratch.partial);
    return c.tp.leave(c.scratch.partial, c.scratch.local);
  }

  void recompute(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    norm_.forward(c, t, previous, delta);
    if (!c.shape.gated()) {
      c.backend.linear_gelu_forward(c.stream, t[kNorm], up_.packed(), up_.bias(c), t[kUp], t[kAct]);
      return;
    }
    c.backend.linear_forward(c.stream, t[kNorm], up_.packed(), up_.bias(c), t[kUp]);
    swiglu(c, t);
  }

  void recompute_cheap(const LayerContext& c, Tensors& t) override {
    norm_.apply(c, t);
    if (c.shape.gated()) swiglu(c, t);
  }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    keep_output_gradient(c, t, dout);
    const Matrix dy = t[kOutputGradient], dup = t[kUpGradient];
    const int64_t f = c.shape.ffn;
    if (c.shape.gated()) {
      c.backend.linear_backward_input(c.stream, dy, down_.packed(), t[kActGradient]);
      c.backend.swiglu_backward(c.stream, t[kUp].columns(0, f), t[kUp].columns(f, f), t[kActGradient],
                                dup.columns(0, f), dup.columns(f, f));
    } else {
      c.backend.linear_gelu_backward_input(c.stream, dy, down_.packed(), t[kUp], dup);
    }
    c.backend.linear_backward_input(c.stream, dup, up_.packed(), c.scratch.partial);
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    down_.backward_weight(c, t[kOutputGradient], t[kAct], at);
    up_.backward_weight(c, t[kUpGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  static void swiglu(const LayerContext& c, Tensors& t) {
    const int64_t f = c.shape.ffn;
    c.backend.swiglu_forward(c.stream, t[kUp].columns(0, f), t[kUp].columns(f, f), t[kAct]);
  }

  EntryNorm norm_;
  Linear up_, down_;
};

}  // namespace

extern const SublayerKind kMlpSublayer;
const SublayerKind kMlpSublayer{
    "mlp", mlp_parameters, mlp_tensors, [](const LayerContext& c, const SublayerUses& u, const Tensors& t) {
      return std::unique_ptr<Sublayer>(std::make_unique<Mlp>(c, u, t));
    }};

}  // namespace trainctl
