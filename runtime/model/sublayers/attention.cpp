#include "runtime/model/sublayers/attention.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {
namespace {

using kernels::Matrix;

enum AttentionNumber {
  kQkv = kFirstAfterNorm, kAttention, kLse,   // [M, Q] [M, A] [M, heads]
  kQkvGradient, kAttentionGradient,     // [M, Q] [M, A]
  kQkvBias, kProjBias
};

/// Both fit into scratch memory for the result.
kernels::AttentionShape widest_of(const kernels::AttentionShape& a, const kernels::AttentionShape& b) {
  return {std::max(a.batch, b.batch),       std::max(a.seq_len, b.seq_len),   std::max(a.heads, b.heads),
          std::max(a.kv_heads, b.kv_heads), std::max(a.head_dim, b.head_dim), b.scale};
}

int64_t attention_cols(const kernels::AttentionShape& s) { return s.heads * s.head_dim; }
int64_t qkv_cols(const kernels::AttentionShape& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

/// Q, K and V as columns of one matrix [M, Q].
struct Heads {
  Matrix q, k, v;
};
Heads heads_of(const kernels::AttentionShape& s, const Matrix& qkv) {
  const int64_t q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim;
  return {qkv.columns(0, q), qkv.columns(q, k), qkv.columns(q + k, k)};
}

class Attention : public Sublayer {
 public:
  Attention(const AttentionPlan& plan, const LayerContext& c, const SublayerUses& uses,
            const Tensors& of_layer)
      : plan_(plan),
        shape_(plan.shape(c.shape)),
        norm_(plan.norm, uses, kNormNumbers),
        qkv_(c, uses.use(plan.qkv_weight), uses.use(plan.qkv_bias), qkv_cols(shape_), c.shape.hidden,
             of_layer[kQkvBias]),
        proj_(c, uses.use(plan.proj_weight), uses.use(plan.proj_bias), c.shape.hidden, attention_cols(shape_),
              of_layer[kProjBias]) {}

  void pack(const LayerContext& c) override {
    qkv_.pack(c);
    proj_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    recompute(c, t, previous, delta);
    c.backend.run(c.stream, kernels::LinearForward{.x = t[kAttention], .w = &proj_.packed(),
                                                   .bias = proj_.bias_once(c), .y = c.scratch.partial});
    return c.tp.leave(c.scratch.partial, c.scratch.local);
  }

  void recompute(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    norm_.forward(c, t, previous, delta);
    c.backend.run(c.stream, kernels::LinearForward{.x = t[kNorm], .w = &qkv_.packed(), .bias = qkv_.bias(c),
                                                   .y = t[kQkv]});
    const Heads h = heads_of(shape_, t[kQkv]);
    rotate(c, h, false);
    c.backend.run(c.stream, kernels::AttentionForward{.shape = shape_, .q = h.q, .k = h.k,
                                                      .v = h.v, .out = t[kAttention],
                                                      .lse = t[kLse].as<float>()});
  }

  void recompute_cheap(const LayerContext& c, Tensors& t) override { norm_.apply(c, t); }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    keep_output_gradient(c, t, dout);
    c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = t[kOutputGradient], .w = &proj_.packed(),
                                                         .dx = t[kAttentionGradient]});
    const Heads h = heads_of(shape_, t[kQkv]), d = heads_of(shape_, t[kQkvGradient]);
    c.backend.run(c.stream, kernels::AttentionBackward{.shape = shape_, .q = h.q, .k = h.k,
                                                       .v = h.v, .out = t[kAttention],
                                                       .lse = t[kLse].as<float>(),
                                                       .dout = t[kAttentionGradient], .dq = d.q, .dk = d.k,
                                                       .dv = d.v});
    rotate(c, d, true);
    c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = t[kQkvGradient], .w = &qkv_.packed(),
                                                         .dx = c.scratch.partial});
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    proj_.backward_weight(c, t[kOutputGradient], t[kAttention], at);
    qkv_.backward_weight(c, t[kQkvGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  void rotate(const LayerContext& c, const Heads& h, bool backward) const {
    if (!plan_.rotary) return;
    for (const Matrix& m : {h.q, h.k})
      c.backend.run(c.stream, kernels::Rope{.x = m, .head_dim = shape_.head_dim, .seq_len = c.shape.seq_len,
                                            .cos_sin = c.cos_sin(*plan_.rotary), .inverse = backward});
  }

  const AttentionPlan& plan_;
  const kernels::AttentionShape shape_;
  EntryNorm norm_;
  Linear qkv_, proj_;
};

}  // namespace

kernels::AttentionShape AttentionPlan::shape(const LayerShape& s) const {
  return {s.micro_sequences,   s.seq_len, heads / s.tensor,
          kv_heads / s.tensor, head_dim,  float(1.0 / std::sqrt(double(head_dim)))};
}

std::vector<TensorDeclaration> AttentionPlan::tensors(const LayerShape& s) const {
  const kernels::AttentionShape on_rank = shape(s);
  const int64_t a = attention_cols(on_rank), q = qkv_cols(on_rank);
  std::vector<TensorDeclaration> list = {{kInput, Life::input, s.compute, s.local_rows, s.hidden},
                                         {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
                                         {kQkv, Life::activation, s.compute, s.rows, q},
                                         {kAttention, Life::activation, s.compute, s.rows, a},
                                         {kLse, Life::activation, DType::f32, s.rows, on_rank.heads},
                                         {kQkvGradient, Life::gradient, s.compute, s.rows, q},
                                         {kAttentionGradient, Life::scratch, s.compute, s.rows, a}};
  EntryNorm::declare(list, s, kNormNumbers);
  if (declares(parameters, qkv_bias)) Linear::declare_bias(list, s, kQkvBias, q);
  if (declares(parameters, proj_bias)) Linear::declare_bias(list, s, kProjBias, s.hidden);
  return list;
}

void AttentionPlan::widen(Widest& widest, const LayerShape& s) const {
  const kernels::AttentionShape on_rank = shape(s);
  widest.columns = std::max({widest.columns, s.hidden, qkv_cols(on_rank)});
  widest.depth = std::max({widest.depth, s.hidden, attention_cols(on_rank)});
  widest.attention = widest_of(widest.attention, on_rank);
}

std::unique_ptr<Sublayer> AttentionPlan::make(const LayerContext& c, const SublayerUses& uses,
                                              const Tensors& of_layer) const {
  return std::make_unique<Attention>(*this, c, uses, of_layer);
}

}  // namespace trainctl
