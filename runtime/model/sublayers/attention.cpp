#include "runtime/model/sublayers/attention.h"

#include <algorithm>

#include "runtime/model/sublayers/cut_attention.h"
#include "runtime/model/sublayers/qk_norm.h"
#include "runtime/model/sublayers/shared_heads.h"

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
  kGated,          // [M, A]
  kOwnKeys,
  kKeysOfRanks,
  kAllKeys,
  kKeysOfBlocks,
  kKeysOfChunk,  // CutAttention
  kHeads,
  kHeadsOut,
  kHeadsLse,
  kHeadsFirstKeys,
  kHeadsGradient,
  kHeadsOutGradient,
  kHeadsRoom,
  kHeadsLseRoom,  // HeadAttention
  kKv,
  kKvGradient,
  kKvSent,
  kKvReceived,      // SharedHeads
  kScalarGradients  // [1, H] each
};
static_assert(kScalarGradients + int(std::size(kernels::kHeadScalars)) <= kMostTensors);
constexpr int gradient_of(kernels::HeadScalar scalar) { return kScalarGradients + int(scalar); }
constexpr CutAttention::Numbers kCutNumbers{kOwnKeys,
                                            kKeysOfRanks,
                                            kAllKeys,
                                            kKeysOfBlocks,
                                            kKeysOfChunk,
                                            {kHeads, kHeadsOut, kHeadsLse, kHeadsFirstKeys, kHeadsGradient,
                                             kHeadsOutGradient, kHeadsRoom, kHeadsLseRoom},
                                            true};
constexpr QkNorms::Numbers kQkNumbers{kQk, kQkSums, kQkDots, kQNormGradient, kKNormGradient};
constexpr SharedHeads::Numbers kSharedNumbers{kKv, kKvGradient, kKvSent, kKvReceived};

int64_t attention_cols(const kernels::AttentionShape& s) { return s.heads * s.head_dim; }
/// Columns of K, and of V, that a rank computes: of whole heads, or some of a shared one's.
int64_t key_cols(const AttentionPlan& plan, const LayerShape& s) {
  return plan.kv_heads * plan.head_dim / s.tensor;
}
int64_t qkv_cols(const AttentionPlan& plan, const LayerShape& s) {
  return (plan.gated ? 2 : 1) * attention_cols(plan.shape(s)) + 2 * key_cols(plan, s);
}
int64_t ranks_of_head(const AttentionPlan& plan, const LayerShape& s) {
  return SharedHeads::ranks_of(plan.kv_heads, s.tensor);
}
/// The norm of a head is of whole ones; that of a projection of what each rank has of it.
QkNorms::Sizes qk_sizes(const AttentionPlan& plan, const LayerShape& s) {
  const kernels::AttentionShape on_rank = plan.shape(s);
  const int64_t k = plan.qk_norm == QkNorm::head ? on_rank.kv_heads * plan.head_dim : key_cols(plan, s);
  return {attention_cols(on_rank), k, plan.head_dim, s.tensor};
}

/// Q, K, V and the gate as columns of one matrix [M, Q].
struct Heads {
  Matrix q, k, v, gate;
};
Heads heads_of(int64_t q, int64_t k, const Matrix& qkv) {
  return {qkv.columns(0, q), qkv.columns(q, k), qkv.columns(q + k, k),
          qkv.cols > q + 2 * k ? qkv.columns(q + 2 * k, q) : Matrix{}};
}

/// A gradient of a scalar is made of queries.
bool sums_queries(const std::vector<ParamDeclaration>& parameters) {
  return std::ranges::any_of(kernels::kHeadScalars, [&](const kernels::HeadScalarRow& row) {
    return row.left == &kernels::QueryRows::q && declares(parameters, AttentionPlan::place_of(row.scalar));
  });
}

class Attention : public Sublayer {
 public:
  Attention(const AttentionPlan& plan, const LayerContext& c, const SublayerUses& uses,
            const Tensors& of_layer)
      : plan_(plan),
        shape_(plan.shape(c.shape)),
        key_cols_(key_cols(plan, c.shape)),
        norm_(plan.norm, uses, kNormNumbers),
        qkv_(c, uses.use(plan.qkv_weight), uses.use(plan.qkv_bias), qkv_cols(plan, c.shape), c.shape.hidden,
             of_layer[kQkvBias], ProductFormat(plan.fp8, plan.fp8.keeps_in)),
        shared_(ranks_of_head(plan, c.shape), plan.head_dim, kSharedNumbers),
        qk_norms_(plan.qk_norm, plan.qk, qk_sizes(plan, c.shape), uses.use(plan.q_norm),
                  uses.use(plan.k_norm), kQkNumbers),
        scalars_(scalars_of(uses)),
        proj_(c, uses.use(plan.proj_weight), uses.use(plan.proj_bias), c.shape.hidden, attention_cols(shape_),
              of_layer[kProjBias], ProductFormat(plan.fp8, plan.fp8.keeps_out)),
        exit_(plan.norm_after, uses, kExitNumbers, {plan.after_weight, plan.after_bias}) {}

  void pack(const LayerContext& c) override {
    qkv_.pack(c);
    proj_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    attend(c, t, previous, delta);
    c.backend.run(c.stream, kernels::LinearForward{.x = proj_.seen(c, t, output(t)),
                                                   .w = &proj_.weight(c, t),
                                                   .bias = proj_.bias_once(c),
                                                   .y = exit_.part(c, t)});
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
                  kernels::LinearBackwardInput{.dy = proj_.seen_gradient(c, t, t[size_t(exit_.gradient())]),
                                               .w = &proj_.weight_of_gradient(c, t),
                                               .dx = t[kAttentionGradient]});
    const Matrix dattention = t[kAttentionGradient];
    const Heads h = product_heads(t[kQkv]), d = product_heads(t[kQkvGradient]), seen = seen_heads(t);
    Heads dseen = d;
    if (shared_.exists()) dseen.k = shared_.dk(t), dseen.v = shared_.dv(t);
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
                                        .dq = dseen.q,
                                        .dk = dseen.k,
                                        .dv = dseen.v};
    CutAttention::backward(c, t, kCutNumbers, op);
    for (const auto& [scalar, use] : scalars_)
      c.backend.run(c.stream, kernels::HeadScalarBackward{
                                  .scalar = scalar,
                                  .rows = {.q = op.q, .out = op.out, .dout = op.dout, .dq = op.dq},
                                  .lse = op.lse,
                                  .values = vector_weight(c.params, use),
                                  .dvalues = early_gradient(c, t, use, gradient_of(scalar), at),
                                  .head_dim = shape_.head_dim,
                                  .accumulate = accumulates_early(c, at)});
    rotate(c, dseen, true);
    if (norms_whole_heads()) qk_norms_.backward_input(c, t, h.q, seen_before_norm(t), d.q, dseen.k, at);
    if (shared_.exists()) shared_.sum(c, t, d.k, d.v);
    if (norms_projections()) qk_norms_.backward_input(c, t, h.q, h.k, d.q, d.k, at);
    c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = qkv_.seen_gradient(c, t, t[kQkvGradient]),
                                                         .w = &qkv_.weight_of_gradient(c, t),
                                                         .dx = c.scratch.partial});
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    exit_.backward_weight(c, t, at);
    proj_.backward_weight(c, t, t[size_t(exit_.gradient())], output(t), at);
    for (const auto& [scalar, use] : scalars_) add_waiting(c, t, use, gradient_of(scalar), at);
    if (qk_norms_.exists()) qk_norms_.backward_weight(c, t, at);
    qkv_.backward_weight(c, t, t[kQkvGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  static std::vector<std::pair<kernels::HeadScalar, int>> scalars_of(const SublayerUses& uses) {
    std::vector<std::pair<kernels::HeadScalar, int>> found;
    for (const kernels::HeadScalarRow& row : kernels::kHeadScalars)
      if (const int use = uses.use(AttentionPlan::place_of(row.scalar)); use >= 0)
        found.emplace_back(row.scalar, use);
    return found;
  }
  /// As far as the input of the last product.
  void attend(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
    norm_.forward(c, t, previous, delta);
    c.backend.run(
        c.stream,
        kernels::LinearForward{
            .x = qkv_.seen(c, t, t[kNorm]), .w = &qkv_.weight(c, t), .bias = qkv_.bias(c), .y = t[kQkv]});
    const Heads h = product_heads(t[kQkv]);
    if (norms_projections()) qk_norms_.forward(c, t, h.q, h.k);
    if (shared_.exists()) shared_.gather(c, t, norms_projections() ? qk_norms_.k(t) : h.k, h.v);
    if (norms_whole_heads()) qk_norms_.forward(c, t, h.q, seen_before_norm(t));
    const Heads seen = seen_heads(t);
    rotate(c, seen, false);
    const kernels::AttentionForward op{.shape = masked(c),
                                       .q = seen.q,
                                       .k = seen.k,
                                       .v = seen.v,
                                       .out = t[kAttention],
                                       .lse = t[kLse].as<float>()};
    if (c.cached.empty())
      CutAttention::forward(c, t, kCutNumbers, op);
    else
      attend_behind(c.cached, c.backend, c.stream, this, op);
    gate(c, t);
  }

  /// Q, K, V and the gate as the product makes them.
  Heads product_heads(const Matrix& qkv) const { return heads_of(attention_cols(shape_), key_cols_, qkv); }
  bool norms_projections() const { return plan_.qk_norm == QkNorm::projection; }
  bool norms_whole_heads() const { return plan_.qk_norm == QkNorm::head; }
  /// K of whole heads.
  Matrix seen_before_norm(const Tensors& t) const {
    return shared_.exists() ? shared_.k(t) : product_heads(t[kQkv]).k;
  }
  /// Q, K and V as attention takes them. The norm of a projection comes before its heads are shared, that of
  /// a head behind.
  Heads seen_heads(const Tensors& t) const {
    Heads h = product_heads(t[kQkv]);
    if (shared_.exists()) h.k = shared_.k(t), h.v = shared_.v(t);
    if (qk_norms_.exists()) h.q = qk_norms_.q(t);
    if (norms_whole_heads() || (norms_projections() && !shared_.exists())) h.k = qk_norms_.k(t);
    return h;
  }
  kernels::AttentionShape masked(const LayerContext& c) const {
    kernels::AttentionShape shape = shape_;
    shape.mask.first_key = c.first_key;
    for (const auto& [scalar, use] : scalars_) shape.mask.scalars[scalar] = c.params.weight(use).as<float>();
    return shape;
  }
  const Matrix& output(const Tensors& t) const { return t[plan_.gated ? kGated : kAttention]; }
  void gate(const LayerContext& c, Tensors& t) const {
    if (!plan_.gated) return;
    c.backend.run(c.stream, kernels::SigmoidGateForward{
                                .x = t[kAttention], .gate = product_heads(t[kQkv]).gate, .y = t[kGated]});
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
  const int64_t key_cols_;
  EntryNorm norm_;
  Linear qkv_;
  SharedHeads shared_;
  QkNorms qk_norms_;
  const std::vector<std::pair<kernels::HeadScalar, int>> scalars_;  ///< those of this layer, and their uses
  Linear proj_;
  Exit exit_;
};

}  // namespace

kernels::AttentionShape AttentionPlan::shape(const LayerShape& s) const {
  return chunk_shape({.batch = s.micro_sequences,
                      .seq_len = s.seq_len,
                      .heads = heads / s.tensor,
                      .kv_heads = std::max<int64_t>(1, kv_heads / s.tensor),
                      .head_dim = head_dim,
                      .scale = scale,
                      .mask = {.window = window, .cap = cap}},
                     s.cut);
}

std::vector<TensorDeclaration> AttentionPlan::tensors(const LayerShape& s) const {
  const kernels::AttentionShape on_rank = shape(s);
  const int64_t a = attention_cols(on_rank), q = qkv_cols(*this, s);
  // Backward reads its columns as heads, where these are kept apart.
  const bool keeps_qkv = !s.exchanges_heads || gated || qk_norm != QkNorm::none || sums_queries(parameters);
  std::vector<TensorDeclaration> list = {
      {kInput, Life::input, s.compute, s.local_rows, s.hidden},
      {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
      {kQkv, keeps_qkv ? Life::activation : Life::scratch, s.compute, s.rows, q},
      {kAttention, Life::activation, s.compute, s.rows, a},
      {kLse, Life::activation, DType::f32, s.rows, on_rank.heads},
      {kQkvGradient, Life::gradient, s.compute, s.rows, q},
      {kAttentionGradient, Life::scratch, s.compute, s.rows, a}};
  declare_fp8(list, s, *this, s.rows, s.hidden * std::max(q, a));
  EntryNorm::declare(list, s, kNormNumbers, norm);
  Exit::declare(list, s, kExitNumbers, norm_after);
  if (qk_norm != QkNorm::none) QkNorms::declare(list, s, qk_norm, qk_sizes(*this, s), kQkNumbers);
  CutAttention::declare(list, s, kCutNumbers, on_rank);
  SharedHeads::declare(list, s, ranks_of_head(*this, s), head_dim, kSharedNumbers);
  if (gated) list.push_back({kGated, Life::cheap, s.compute, s.rows, a});
  for (const kernels::HeadScalarRow& row : kernels::kHeadScalars)
    if (declares(parameters, place_of(row.scalar)))
      declare_waiting(list, gradient_of(row.scalar), on_rank.heads);
  if (declares(parameters, qkv_bias)) Linear::declare_bias(list, s, kQkvBias, q);
  if (declares(parameters, proj_bias)) Linear::declare_bias(list, s, kProjBias, s.hidden);
  return list;
}

void AttentionPlan::widen(Widest& widest, const LayerShape& s) const {
  const kernels::AttentionShape on_rank = shape(s);
  widest.columns = std::max({widest.columns, s.hidden, qkv_cols(*this, s)});
  widest.depth = std::max({widest.depth, s.hidden, attention_cols(on_rank)});
  widest.attention = widest_of(widest.attention, on_rank);
}

std::unique_ptr<Sublayer> AttentionPlan::make(const LayerContext& c, const SublayerUses& uses,
                                              const Tensors& of_layer) const {
  return std::make_unique<Attention>(*this, c, uses, of_layer);
}

}  // namespace trainctl
