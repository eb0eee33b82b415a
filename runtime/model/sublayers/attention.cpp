#include "runtime/model/sublayers/attention.h"

#include <algorithm>

#include "runtime/model/sublayers/cut_attention.h"
#include "runtime/model/sublayers/qk_norm.h"

namespace trainctl {
namespace {

using kernels::Matrix;

enum AttentionNumber {
  kQkv = kFirstAfterNorm,
  kAttention,
  kLse,  // [M, Q] [M, A] [M, H]
  kQkvGradient,
  kAttentionGradient,  // [M, Q] [M, A]
  kQkvBias,
  kProjBias,
  kQk,
  kQkSums,
  kQkDots,
  kQNormGradient,
  kKNormGradient,  // QkNorms
  kGated,
  kSinksGradient,  // [M, A]
  kOwnKeys,
  kKeysOfRanks,
  kAllKeys,
  kKeysOfBlocks,
  kKeysOfChunk  // CutAttention
};
constexpr CutAttention::Numbers kCutNumbers{kOwnKeys, kKeysOfRanks, kAllKeys, kKeysOfBlocks, kKeysOfChunk};
constexpr QkNorms::Numbers kQkNumbers{kQk, kQkSums, kQkDots, kQNormGradient, kKNormGradient};


int64_t attention_cols(const kernels::AttentionShape& s) { return s.heads * s.head_dim; }
int64_t key_cols(const kernels::AttentionShape& s) { return s.kv_heads * s.head_dim; }
int64_t qkv_cols(const AttentionPlan& plan, const kernels::AttentionShape& s) {
  return (plan.gated ? 2 : 1) * attention_cols(s) + 2 * key_cols(s);
}
QkNorms::Sizes qk_sizes(const AttentionPlan& plan, const LayerShape& s) {
  const kernels::AttentionShape on_rank = plan.shape(s);
  return {attention_cols(on_rank), key_cols(on_rank), plan.head_dim, s.tensor};
}

/// Q, K, V and the gate as columns of one matrix [M, Q].
struct Heads {
  Matrix q, k, v, gate;
};
Heads heads_of(const kernels::AttentionShape& s, const Matrix& qkv) {
  const int64_t q = attention_cols(s), k = key_cols(s);
  return {qkv.columns(0, q), qkv.columns(q, k), qkv.columns(q + k, k),
          qkv.cols > q + 2 * k ? qkv.columns(q + 2 * k, q) : Matrix{}};
}

class Attention : public Sublayer {
 public:
  Attention(const AttentionPlan& plan, const LayerContext& c, const SublayerUses& uses,
            const Tensors& of_layer)
      : plan_(plan),
        shape_(plan.shape(c.shape)),
        norm_(plan.norm, uses, kNormNumbers),
        qkv_(c, uses.use(plan.qkv_weight), uses.use(plan.qkv_bias), qkv_cols(plan, shape_), c.shape.hidden,
             of_layer[kQkvBias]),
        qk_norms_(plan.qk_norm, plan.qk, qk_sizes(plan, c.shape), uses.use(plan.q_norm),
                  uses.use(plan.k_norm), kQkNumbers),
        sinks_(uses.use(plan.sinks)),
        proj_(c, uses.use(plan.proj_weight), uses.use(plan.proj_bias), c.shape.hidden, attention_cols(shape_),
              of_layer[kProjBias]),
        exit_(plan.norm_after, uses, kExitNumbers, {plan.after_weight, plan.after_bias}) {}

  void pack(const LayerContext& c) override {
    qkv_.pack(c);
    proj_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    attend(c, t, previous, delta);
    c.backend.run(
        c.stream,
        kernels::LinearForward{
            .x = output(t), .w = &proj_.packed(), .bias = proj_.bias_once(c), .y = exit_.part(c, t)});
    return exit_.forward(c, t);
  }

  void recompute(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    if (exit_.keeps())
      forward(c, t, previous, delta);
    else
      attend(c, t, previous, delta);
  }

  void recompute_cheap(const LayerContext& c, Tensors& t) override {
    norm_.apply(c, t);
    gate(c, t);
  }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    exit_.backward_input(c, t, dout, at);
    c.backend.run(c.stream,
                  kernels::LinearBackwardInput{
                      .dy = t[size_t(exit_.gradient())], .w = &proj_.packed(), .dx = t[kAttentionGradient]});
    const Matrix dattention = t[kAttentionGradient];
    const Heads h = heads_of(shape_, t[kQkv]), d = heads_of(shape_, t[kQkvGradient]), seen = seen_heads(t);
    if (plan_.gated)
      c.backend.run(
          c.stream,
          kernels::SigmoidGateBackward{
              .x = t[kAttention], .gate = h.gate, .dy = dattention, .dx = dattention, .dgate = d.gate});
    const kernels::AttentionBackward op{.shape = masked(c),
                                        .q = seen.q,
                                        .k = seen.k,
                                        .v = seen.v,
                                        .out = t[kAttention],
                                        .lse = t[kLse].as<float>(),
                                        .dout = dattention,
                                        .dq = d.q,
                                        .dk = d.k,
                                        .dv = d.v};
    CutAttention::backward(c, t, kCutNumbers, op);
    if (sinks_ >= 0)
      c.backend.run(c.stream,
                    kernels::SinkBackward{.out = t[kAttention],
                                          .dout = dattention,
                                          .lse = t[kLse].as<float>(),
                                          .sinks = vector_weight(c.params, sinks_),
                                          .dsinks = early_gradient(c, t, sinks_, kSinksGradient, at),
                                          .head_dim = shape_.head_dim,
                                          .accumulate = accumulates_early(c, at)});
    rotate(c, d, true);
    if (qk_norms_.exists()) qk_norms_.backward_input(c, t, h.q, h.k, d.q, d.k, at);
    c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = t[kQkvGradient], .w = &qkv_.packed(),
                                                         .dx = c.scratch.partial});
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    exit_.backward_weight(c, t, at);
    proj_.backward_weight(c, t[size_t(exit_.gradient())], output(t), at);
    if (sinks_ >= 0) add_waiting(c, t, sinks_, kSinksGradient, at);
    if (qk_norms_.exists()) qk_norms_.backward_weight(c, t, at);
    qkv_.backward_weight(c, t[kQkvGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  /// As far as the input of the last product.
  void attend(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
    norm_.forward(c, t, previous, delta);
    c.backend.run(c.stream, kernels::LinearForward{
                                .x = t[kNorm], .w = &qkv_.packed(), .bias = qkv_.bias(c), .y = t[kQkv]});
    const Heads h = heads_of(shape_, t[kQkv]);
    if (qk_norms_.exists()) qk_norms_.forward(c, t, h.q, h.k);
    const Heads seen = seen_heads(t);
    rotate(c, seen, false);
    kernels::AttentionForward op{.shape = masked(c),
                                 .q = seen.q,
                                 .k = seen.k,
                                 .v = seen.v,
                                 .out = t[kAttention],
                                 .lse = t[kLse].as<float>()};
    if (c.cache) c.cache->extend(c.stream, this, op);
    CutAttention::forward(c, t, kCutNumbers, op);
    gate(c, t);
  }

  /// Q, K and V as attention takes them.
  Heads seen_heads(const Tensors& t) const {
    Heads h = heads_of(shape_, t[kQkv]);
    if (qk_norms_.exists()) h.q = qk_norms_.q(t), h.k = qk_norms_.k(t);
    return h;
  }
  kernels::AttentionShape masked(const LayerContext& c) const {
    kernels::AttentionShape shape = shape_;
    shape.mask.first_key = c.first_key;
    if (sinks_ >= 0) shape.mask.sinks = c.params.weight(sinks_).as<float>();
    return shape;
  }
  const Matrix& output(const Tensors& t) const { return t[plan_.gated ? kGated : kAttention]; }
  void gate(const LayerContext& c, Tensors& t) const {
    if (!plan_.gated) return;
    c.backend.run(c.stream, kernels::SigmoidGateForward{
                                .x = t[kAttention], .gate = heads_of(shape_, t[kQkv]).gate, .y = t[kGated]});
  }
  void rotate(const LayerContext& c, const Heads& h, bool backward) const {
    if (!plan_.rotary) return;
    for (const Matrix& m : {h.q, h.k})
      c.backend.run(c.stream, kernels::Rope{.x = m,
                                            .head_dim = shape_.head_dim,
                                            .seq_len = c.shape.seq_len,
                                            .cos_sin = c.cos_sin(*plan_.rotary),
                                            .inverse = backward,
                                            .rotary_dim = plan_.rotary->channels,
                                            .interleaved = plan_.rotary->interleaved,
                                            .positions = c.positions});
  }

  const AttentionPlan& plan_;
  const kernels::AttentionShape shape_;
  EntryNorm norm_;
  Linear qkv_;
  QkNorms qk_norms_;
  int sinks_;
  Linear proj_;
  Exit exit_;
};

}  // namespace

kernels::AttentionShape AttentionPlan::shape(const LayerShape& s) const {
  return chunk_shape({.batch = s.micro_sequences,
                      .seq_len = s.seq_len,
                      .heads = heads / s.tensor,
                      .kv_heads = kv_heads / s.tensor,
                      .head_dim = head_dim,
                      .scale = scale,
                      .mask = {.window = window, .cap = cap}},
                     s.cut);
}

std::vector<TensorDeclaration> AttentionPlan::tensors(const LayerShape& s) const {
  const kernels::AttentionShape on_rank = shape(s);
  const int64_t a = attention_cols(on_rank), q = qkv_cols(*this, on_rank);
  std::vector<TensorDeclaration> list = {{kInput, Life::input, s.compute, s.local_rows, s.hidden},
                                         {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
                                         {kQkv, Life::activation, s.compute, s.rows, q},
                                         {kAttention, Life::activation, s.compute, s.rows, a},
                                         {kLse, Life::activation, DType::f32, s.rows, on_rank.heads},
                                         {kQkvGradient, Life::gradient, s.compute, s.rows, q},
                                         {kAttentionGradient, Life::scratch, s.compute, s.rows, a}};
  EntryNorm::declare(list, s, kNormNumbers, norm);
  Exit::declare(list, s, kExitNumbers, norm_after);
  if (qk_norm != QkNorm::none) QkNorms::declare(list, s, qk_norm, qk_sizes(*this, s), kQkNumbers);
  CutAttention::declare(list, s, kCutNumbers, key_cols(on_rank));
  if (gated) list.push_back({kGated, Life::cheap, s.compute, s.rows, a});
  if (declares(parameters, sinks)) declare_waiting(list, kSinksGradient, on_rank.heads);
  if (declares(parameters, qkv_bias)) Linear::declare_bias(list, s, kQkvBias, q);
  if (declares(parameters, proj_bias)) Linear::declare_bias(list, s, kProjBias, s.hidden);
  return list;
}

void AttentionPlan::widen(Widest& widest, const LayerShape& s) const {
  const kernels::AttentionShape on_rank = shape(s);
  widest.columns = std::max({widest.columns, s.hidden, qkv_cols(*this, on_rank)});
  widest.depth = std::max({widest.depth, s.hidden, attention_cols(on_rank)});
  widest.attention = widest_of(widest.attention, on_rank);
}

std::unique_ptr<Sublayer> AttentionPlan::make(const LayerContext& c, const SublayerUses& uses,
                                              const Tensors& of_layer) const {
  return std::make_unique<Attention>(*this, c, uses, of_layer);
}

}  // namespace trainctl
