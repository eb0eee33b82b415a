#include "runtime/model/sublayers/latent_attention.h"

#include <algorithm>

#include "runtime/model/sublayers/cut_attention.h"
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {
namespace {

using kernels::Matrix;

enum LatentNumber {
  kDown = kFirstAfterNorm,
  kQueryNormed,
  kQueryStats,
  kKeyNormed,
  kKeyStats,  // [M, Lq + Lk + R] [M, Lq] [M, 2] [M, Lk] [M, 2]
  kQueries,
  kKeyValues,
  kAttended,
  kAttendedLse,  // [M, A] [M, H (N + W)] [M, P] [M, H]
  kDownGradient,
  kQueriesGradient,
  kKeyValuesGradient,
  kQueryNormGradient,
  kKeyNormGradient,
  // Of one pass: keys and values as attention takes them, and its output, with their gradients [M, A] each;
  // gradients of the output [M, P], of the normed latents, and of x through queries without a latent [M, C].
  kKeys,
  kValues,
  kWide,
  kKeysGradient,
  kValuesGradient,
  kWideGradient,
  kAttendedGradient,
  kQueryNormedGradient,
  kKeyNormedGradient,
  kQueriesInput,
  kOwnHeads,
  kHeadsOfRanks,
  kAllHeads,
  kHeadsOfBlocks,
  kHeadsOfChunk,  // CutAttention
  kHeadsHere,
  kHeadsOutput,
  kHeadsSums,
  kHeadsKeys,
  kHeadsHereGradient,
  kHeadsOutputGradient,
  kHeadsSent,
  kHeadsSumsSent  // HeadAttention
};
constexpr CutAttention::Numbers kCutHeads{
    kOwnHeads,
    kHeadsOfRanks,
    kAllHeads,
    kHeadsOfBlocks,
    kHeadsOfChunk,
    {kHeadsHere, kHeadsOutput, kHeadsSums, kHeadsKeys, kHeadsHereGradient, kHeadsOutputGradient, kHeadsSent,
     kHeadsSumsSent}};
static_assert(kHeadsSumsSent < kMostTensors);

struct LatentSizes {
  int64_t down = 0, queries = 0, key_values = 0, attended = 0;  ///< columns on a rank
};
LatentSizes sizes_of(const LatentAttentionPlan& plan, const LayerShape& s) {
  const int64_t heads = plan.heads / s.tensor;
  return {plan.query_latent + plan.key_latent + plan.rope_dim, heads * plan.head_dim(),
          heads * (plan.own_dim + plan.value_dim), heads * plan.value_dim};
}

/// RMSNorm of one latent: some columns of the down product.
class LatentNorm {
 public:
  struct Numbers {
    int out, stats, out_gradient, weight_gradient;
  };
  LatentNorm(const NormPlan& plan, int weight, int64_t begin, int64_t width, const Numbers& n)
      : plan_(plan), weight_(weight), begin_(begin), width_(width), n_(n) {}
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, int64_t width,
                      const Numbers& n) {
    list.push_back({n.out, Life::cheap, s.compute, s.rows, width});
    list.push_back({n.stats, Life::activation, DType::f32, s.rows, 2});
    list.push_back({n.out_gradient, Life::scratch, s.compute, s.rows, width});
    declare_waiting(list, n.weight_gradient, width);
  }
  bool exists() const { return width_ > 0; }
  Matrix out(const Tensors& t) const { return t[size_t(n_.out)]; }
  Matrix out_gradient(const Tensors& t) const { return t[size_t(n_.out_gradient)]; }

  void forward(const LayerContext& c, const Tensors& t) const {
    if (!exists()) return;
    c.backend.run(c.stream, kernels::NormForward{.kind = plan_.kind,
                                                 .x = of(t[kDown]),
                                                 .weight = vector_weight(c.params, weight_),
                                                 .eps = plan_.eps,
                                                 .y = out(t),
                                                 .stats = t[size_t(n_.stats)].as<float>(),
                                                 .weight_offset = plan_.weight_offset});
  }
  void apply(const LayerContext& c, const Tensors& t) const {
    if (!exists()) return;
    c.backend.run(c.stream, kernels::NormApply{.kind = plan_.kind,
                                               .x = of(t[kDown]),
                                               .stats = t[size_t(n_.stats)].as<float>(),
                                               .weight = vector_weight(c.params, weight_),
                                               .y = out(t),
                                               .weight_offset = plan_.weight_offset});
  }
  /// From out_gradient into its columns of the down product's.
  void backward_input(const LayerContext& c, const Tensors& t, LanePlace at) const {
    if (!exists()) return;
    c.backend.run(c.stream,
                  kernels::NormBackward{.kind = plan_.kind,
                                        .dy = out_gradient(t),
                                        .x = of(t[kDown]),
                                        .weight = vector_weight(c.params, weight_),
                                        .stats = t[size_t(n_.stats)].as<float>(),
                                        .dx = of(t[kDownGradient]),
                                        .dweight = early_gradient(c, t, weight_, n_.weight_gradient, at),
                                        .accumulate = accumulates_early(c, at),
                                        .weight_offset = plan_.weight_offset});
  }
  void backward_weight(const LayerContext& c, const Tensors& t, LanePlace at) const {
    if (exists()) add_waiting(c, t, weight_, n_.weight_gradient, at);
  }

 private:
  Matrix of(const Matrix& down) const { return down.columns(begin_, width_); }

  const NormPlan plan_;
  int weight_;
  int64_t begin_, width_;
  Numbers n_;
};
constexpr LatentNorm::Numbers kQueryLatent{kQueryNormed, kQueryStats, kQueryNormedGradient,
                                           kQueryNormGradient};
constexpr LatentNorm::Numbers kKeyLatent{kKeyNormed, kKeyStats, kKeyNormedGradient, kKeyNormGradient};

class LatentAttention : public Sublayer {
 public:
  LatentAttention(const LatentAttentionPlan& plan, const LayerContext& c, const SublayerUses& uses)
      : plan_(plan),
        shape_(plan.shape(c.shape)),
        sizes_(sizes_of(plan, c.shape)),
        norm_(plan.norm, uses, kNormNumbers),
        query_norm_(plan.latent, uses.use(plan.query_norm), 0, plan.query_latent, kQueryLatent),
        key_norm_(plan.latent, uses.use(plan.key_norm), plan.query_latent, plan.key_latent, kKeyLatent),
        down_(c, uses.use(plan.down_weight), -1, sizes_.down, c.shape.hidden, {}, in_format()),
        query_(c, uses.use(plan.query_weight), -1, sizes_.queries,
               plan.query_latent > 0 ? plan.query_latent : c.shape.hidden, {}, in_format()),
        key_value_(c, uses.use(plan.key_value_weight), -1, sizes_.key_values, plan.key_latent, {},
                   in_format()),
        proj_(c, uses.use(plan.proj_weight), -1, c.shape.hidden, sizes_.attended, {},
              ProductFormat(plan.fp8, plan.fp8.keeps_out)),
        exit_(plan.norm_after, uses, kExitNumbers, {plan.after_weight, plan.after_bias}) {}

  void pack(const LayerContext& c) override {
    for (Linear* linear : {&down_, &query_, &key_value_, &proj_}) linear->pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    attend(c, t, previous, delta);
    product(c, t, t[kAttended], proj_, exit_.part(c, t));
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
    query_norm_.apply(c, t);
    key_norm_.apply(c, t);
  }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    exit_.backward_input(c, t, dout, at);
    input_gradient(c, t, t[size_t(exit_.gradient())], proj_, t[kAttendedGradient]);
    attention_gradient(c, t);
    input_gradient(c, t, t[kKeyValuesGradient], key_value_, key_norm_.out_gradient(t));
    key_norm_.backward_input(c, t, at);
    if (query_norm_.exists()) {
      input_gradient(c, t, t[kQueriesGradient], query_, query_norm_.out_gradient(t));
      query_norm_.backward_input(c, t, at);
    }
    input_gradient(c, t, t[kDownGradient], down_, c.scratch.partial);
    if (!query_norm_.exists()) {
      input_gradient(c, t, t[kQueriesGradient], query_, t[kQueriesInput]);
      c.backend.run(c.stream, kernels::Add{.src = t[kQueriesInput], .dst = c.scratch.partial});
    }
    norm_.backward_input(c, t, c.tp.leave(c.scratch.partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    exit_.backward_weight(c, t, at);
    proj_.backward_weight(c, t, t[size_t(exit_.gradient())], t[kAttended], at);
    key_value_.backward_weight(c, t, t[kKeyValuesGradient], key_norm_.out(t), at);
    query_.backward_weight(c, t, t[kQueriesGradient], query_input(t), at);
    query_norm_.backward_weight(c, t, at);
    key_norm_.backward_weight(c, t, at);
    down_.backward_weight(c, t, t[kDownGradient], t[kNorm], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  ProductFormat in_format() const { return {plan_.fp8, plan_.fp8.keeps_in}; }
  static void product(const LayerContext& c, const Tensors& t, const Matrix& x, const Linear& w,
                      const Matrix& y) {
    c.backend.run(c.stream, kernels::LinearForward{.x = w.seen(c, t, x), .w = &w.weight(c, t), .y = y});
  }
  static void input_gradient(const LayerContext& c, const Tensors& t, const Matrix& dy, const Linear& w,
                             const Matrix& dx) {
    c.backend.run(c.stream, kernels::LinearBackwardInput{
                                .dy = w.seen_gradient(c, t, dy), .w = &w.weight_of_gradient(c, t), .dx = dx});
  }
  const Matrix& query_input(const Tensors& t) const {
    return t[query_norm_.exists() ? int(kQueryNormed) : int(kNorm)];
  }

  /// As far as the input of the last product.
  void attend(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
    norm_.forward(c, t, previous, delta);
    product(c, t, t[kNorm], down_, t[kDown]);
    query_norm_.forward(c, t);
    key_norm_.forward(c, t);
    product(c, t, query_input(t), query_, t[kQueries]);
    product(c, t, key_norm_.out(t), key_value_, t[kKeyValues]);
    rotate(c, t[kQueries], rope_key(t[kDown]), false);
    expand(c, t);
    const kernels::AttentionForward op{.shape = masked(c),
                                       .q = t[kQueries],
                                       .k = t[kKeys],
                                       .v = t[kValues],
                                       .out = wide(t, kWide, kAttended),
                                       .lse = t[kAttendedLse].as<float>()};
    if (c.cached.empty())
      CutAttention::forward(c, t, kCutHeads, op);
    else
      attend_behind(c.cached, c.backend, c.stream, this, op);
    if (is_wide()) copy_values(c, t[kWide], t[kAttended], false);
  }

  /// The gradient of attention's output becomes those of queries, of keys and values before they are spread
  /// over the heads, and of the rope key.
  void attention_gradient(const LayerContext& c, Tensors& t) const {
    expand(c, t);  // again: they are wider than what they are made of, so that no layer keeps them
    if (is_wide()) {
      copy_values(c, t[kAttended], t[kWide], true);
      copy_values(c, t[kAttendedGradient], t[kWideGradient], true);
    }
    CutAttention::backward(c, t, kCutHeads,
                           {.shape = masked(c),
                            .q = t[kQueries],
                            .k = t[kKeys],
                            .v = t[kValues],
                            .out = wide(t, kWide, kAttended),
                            .lse = t[kAttendedLse].as<float>(),
                            .dout = wide(t, kWideGradient, kAttendedGradient),
                            .dq = t[kQueriesGradient],
                            .dk = t[kKeysGradient],
                            .dv = t[kValuesGradient]});
    c.backend.run(c.stream, kernels::ExpandKeysBackward{.heads = shape_.heads,
                                                        .k = t[kKeysGradient],
                                                        .v = t[kValuesGradient],
                                                        .kv = t[kKeyValuesGradient],
                                                        .shared = rope_key(t[kDownGradient])});
    rotate(c, t[kQueriesGradient], rope_key(t[kDownGradient]), true);
  }

  void expand(const LayerContext& c, const Tensors& t) const {
    c.backend.run(c.stream, kernels::ExpandKeys{.heads = shape_.heads,
                                                .kv = t[kKeyValues],
                                                .shared = rope_key(t[kDown]),
                                                .k = t[kKeys],
                                                .v = t[kValues]});
  }

  Matrix rope_key(const Matrix& down) const {
    return down.columns(plan_.query_latent + plan_.key_latent, plan_.rope_dim);
  }

  void rotate(const LayerContext& c, const Matrix& queries, const Matrix& key, bool backward) const {
    if (!plan_.rotary) return;
    kernels::Rope op{.x = queries,
                     .head_dim = plan_.head_dim(),
                     .seq_len = c.shape.seq_len,
                     .cos_sin = c.cos_sin(*plan_.rotary),
                     .inverse = backward,
                     .rotary_dim = plan_.rope_dim,
                     .interleaved = plan_.rotary->interleaved,
                     .positions = c.positions,
                     .rotary_begin = plan_.own_dim};
    c.backend.run(c.stream, op);
    op.x = key, op.head_dim = plan_.rope_dim, op.rotary_begin = 0;
    c.backend.run(c.stream, op);
  }

  /// Attention computes values as wide as keys: those of fewer channels have zeros behind, and so has its
  /// output.
  bool is_wide() const { return plan_.value_dim < plan_.head_dim(); }
  Matrix wide(const Tensors& t, int number, int narrow) const {
    return t[size_t(is_wide() ? number : narrow)];
  }
  /// The values of all heads between a row of heads of D channels and one of heads of W. widens: from W to D,
  /// and zeros behind.
  void copy_values(const LayerContext& c, const Matrix& from, const Matrix& to, bool widens) const {
    if (widens) c.backend.run(c.stream, kernels::FillZero{to.data, size_t(to.count()) * size_of(to.dtype)});
    c.backend.run(c.stream, kernels::Copy{.src = values_of(from), .dst = values_of(to)});
  }
  /// A row for each head, without the zeros.
  Matrix values_of(const Matrix& m) const {
    ENSURE(m.contiguous());
    return kernels::matrix(m.data, m.dtype, m.rows * shape_.heads, m.cols / shape_.heads)
        .columns(0, plan_.value_dim);
  }

  kernels::AttentionShape masked(const LayerContext& c) const {
    kernels::AttentionShape shape = shape_;
    shape.mask.first_key = c.first_key;
    return shape;
  }

  const LatentAttentionPlan& plan_;
  const kernels::AttentionShape shape_;
  const LatentSizes sizes_;
  EntryNorm norm_;
  LatentNorm query_norm_, key_norm_;
  Linear down_, query_, key_value_, proj_;
  Exit exit_;
};

}  // namespace

kernels::AttentionShape LatentAttentionPlan::shape(const LayerShape& s) const {
  return chunk_shape({.batch = s.micro_sequences,
                      .seq_len = s.seq_len,
                      .heads = heads / s.tensor,
                      .kv_heads = heads / s.tensor,
                      .head_dim = head_dim(),
                      .scale = scale,
                      .mask = {.window = window, .cap = cap}},
                     s.cut);
}

std::vector<TensorDeclaration> LatentAttentionPlan::tensors(const LayerShape& s) const {
  const LatentSizes n = sizes_of(*this, s);
  std::vector<TensorDeclaration> list = {
      {kInput, Life::input, s.compute, s.local_rows, s.hidden},
      {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
      {kDown, Life::activation, s.compute, s.rows, n.down},
      {kQueries, Life::activation, s.compute, s.rows, n.queries},
      {kKeyValues, Life::activation, s.compute, s.rows, n.key_values},
      {kAttended, Life::activation, s.compute, s.rows, n.attended},
      {kAttendedLse, Life::activation, DType::f32, s.rows, heads / s.tensor},
      {kDownGradient, Life::gradient, s.compute, s.rows, n.down},
      {kQueriesGradient, Life::gradient, s.compute, s.rows, n.queries},
      {kKeyValuesGradient, Life::gradient, s.compute, s.rows, n.key_values},
      {kAttendedGradient, Life::scratch, s.compute, s.rows, n.attended}};
  std::vector<int> wide = {kKeys, kValues, kKeysGradient, kValuesGradient};
  if (value_dim < head_dim()) wide.insert(wide.end(), {kWide, kWideGradient});
  for (const int number : wide) list.push_back({number, Life::scratch, s.compute, s.rows, n.queries});
  CutAttention::declare(list, s, kCutHeads, shape(s));
  declare_fp8(list, s, *this, s.rows,
              std::max({n.down * s.hidden, n.queries * (query_latent > 0 ? query_latent : s.hidden),
                        n.key_values * key_latent, n.attended * s.hidden}));
  EntryNorm::declare(list, s, kNormNumbers, norm);
  Exit::declare(list, s, kExitNumbers, norm_after);
  LatentNorm::declare(list, s, key_latent, kKeyLatent);
  if (query_latent > 0)
    LatentNorm::declare(list, s, query_latent, kQueryLatent);
  else
    list.push_back({kQueriesInput, Life::scratch, s.compute, s.rows, s.hidden});
  return list;
}

void LatentAttentionPlan::widen(Widest& widest, const LayerShape& s) const {
  const LatentSizes n = sizes_of(*this, s);
  widest.columns = std::max({widest.columns, s.hidden, n.down, n.queries, n.key_values});
  widest.depth = std::max({widest.depth, s.hidden, n.attended, query_latent, key_latent});
  widest.attention = widest_of(widest.attention, shape(s));
}

std::unique_ptr<Sublayer> LatentAttentionPlan::make(const LayerContext& c, const SublayerUses& uses,
                                                    const Tensors&) const {
  return std::make_unique<LatentAttention>(*this, c, uses);
}

}  // namespace trainctl
