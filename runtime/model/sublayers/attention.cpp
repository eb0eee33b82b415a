// Causal self-attention:  x -> norm -> qkv -> (rope) -> attention -> proj
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {
namespace {

using kernels::Matrix;
using parallel::Cut;

enum AttentionPlace { qkv_weight = kFirstAfterNormPlaces, qkv_bias, proj_weight, proj_bias };
enum AttentionNumber {
  kQkv = kFirstAfterNorm, kAttention, kLse,   // [M, Q] [M, A] [M, heads]
  kQkvGradient, kAttentionGradient,     // [M, Q] [M, A]
  kQkvBias, kProjBias
};

std::vector<ParamDeclaration> parameters(const ModelSpec& m) {
  const int64_t h = m.hidden_size, q = m.num_heads * m.head_dim(), kv = m.num_kv_heads * m.head_dim();
  ParamList list(m);
  if (m.family == Family::gpt2) {
    list.norm("ln_1", {norm_weight, norm_bias});
    list.linear({.name = "attn.c_attn", .out = 3 * h, .in = h, .cut = Cut::rows, .sections = {h, h, h}},
                {qkv_weight, qkv_bias});
    list.linear({.name = "attn.c_proj", .out = h, .in = h, .cut = Cut::cols, .residual = true},
                {proj_weight, proj_bias});
  } else {
    list.norm("input_layernorm", {norm_weight});
    list.linear({.name = "self_attn.q_proj", .out = q, .in = h, .cut = Cut::rows}, {qkv_weight});
    list.linear({.name = "self_attn.k_proj", .out = kv, .in = h, .cut = Cut::rows, .joined = true},
                {qkv_weight});
    list.linear({.name = "self_attn.v_proj", .out = kv, .in = h, .cut = Cut::rows, .joined = true},
                {qkv_weight});
    list.linear({.name = "self_attn.o_proj", .out = h, .in = q, .cut = Cut::cols, .residual = true},
                {proj_weight});
  }
  return list.take();
}

std::vector<TensorDeclaration> tensors(const LayerShape& s) {
  const int64_t a = s.heads * s.head_dim;
  std::vector<TensorDeclaration> list = {{kInput, Life::input, s.compute, s.local_rows, s.hidden},
                                         {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
                                         {kQkv, Life::activation, s.compute, s.rows, s.qkv_cols()},
                                         {kAttention, Life::activation, s.compute, s.rows, a},
                                         {kLse, Life::activation, DType::f32, s.rows, s.heads},
                                         {kQkvGradient, Life::gradient, s.compute, s.rows, s.qkv_cols()},
                                         {kAttentionGradient, Life::scratch, s.compute, s.rows, a}};
  EntryNorm::declare(list, s, kNormNumbers);
  if (s.biases()) {
    Linear::declare_bias(list, s, kQkvBias, s.qkv_cols());
    Linear::declare_bias(list, s, kProjBias, s.hidden);
  }
  return list;
}

class Attention : public Sublayer {
 public:
  Attention(const LayerContext& c, const SublayerUses& uses, const Tensors& of_layer)
      : norm_(uses, norm_weight, norm_bias, kNormNumbers),
        qkv_(c, uses.use(qkv_weight), uses.use(qkv_bias), c.shape.qkv_cols(), c.shape.hidden,
             of_layer[kQkvBias]),
        proj_(c, uses.use(proj_weight), uses.use(proj_bias), c.shape.hidden, c.shape.heads * c.shape.head_dim,
              of_layer[kProjBias]) {}

  void pack(const LayerContext& c) override {
    qkv_.pack(c);
    proj_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    recompute(c, t, previous, delta);
    c.backend.linear_forward(c.stream, t[kAttention], proj_.packed(), proj_.bias_once(c), c.scratch.partial);
    return c.tp.leave(c.scratch.partial, c.scratch.local);
  }

  void recompute(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    norm_.forward(c, t, previous, delta);
    c.backend.linear_forward(c.stream, t[kNorm], qkv_.packed(), qkv_.bias(c), t[kQkv]);
    const Heads h = heads_of(c.shape, t[kQkv]);
    rotate(c, h, false);
    c.backend.attention_forward(c.stream, c.shape.attention(), h.q, h.k, h.v, t[kAttention],
                                t[kLse].as<float>());
  }

  void recompute_cheap(const LayerContext& c, Tensors& t) override { norm_.apply(c, t); }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    keep_output_gradient(c, t, dout);
    c.backend.linear_backward_input(c.stream, t[kOutputGradient], proj_.packed(), t[kAttentionGradient]);
    const Heads h = heads_of(c.shape, t[kQkv]), d = heads_of(c.shape, t[kQkvGradient]);
    c.backend.attention_backward(c.stream, c.shape.attention(), h.q, h.k, h.v, t[kAttention],
                                 t[kLse].as<float>(), t[kAttentionGradient], d.q, d.k, d.v);
    rotate(c, d, true);
    c.backend.linear_backward_input(c.stream, t[kQkvGradient], qkv_.packed(), c.scratch.partial);
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    proj_.backward_weight(c, t[kOutputGradient], t[kAttention], at);
    qkv_.backward_weight(c, t[kQkvGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  static void rotate(const LayerContext& c, const Heads& h, bool backward) {
    if (!c.cos_sin) return;
    for (const Matrix& m : {h.q, h.k})
      c.backend.rope(c.stream, m, c.shape.head_dim, c.shape.seq_len, c.cos_sin, backward);
  }

  EntryNorm norm_;
  Linear qkv_, proj_;
};

}  // namespace

extern const SublayerKind kAttentionSublayer;
const SublayerKind kAttentionSublayer{
    "attention", parameters, tensors, [](const LayerContext& c, const SublayerUses& u, const Tensors& t) {
      return std::unique_ptr<Sublayer>(std::make_unique<Attention>(c, u, t));
    }};

}  // namespace trainctl
