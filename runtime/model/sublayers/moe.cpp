#include "runtime/model/sublayers/moe.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/sublayers/ffn_activation.h"
#include "runtime/model/sublayers/latent_experts.h"
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {
namespace {

using kernels::Matrix;

enum MoeNumber {
  kLogits = kFirstAfterNorm,
  kIds,
  kWeights,
  kCounts,  // [M, E] [M, k] [M, k] [M / route tokens, E]
  kOffsets,
  kSlots,
  kRows,
  kOffsetsOfSources,
  kOffsetsHere,
  kOnHost,
  kHereOnHost,
  kRowWeights,
  kWeightsHere,
  kWeightGradientsHere,
  kTokensSent,
  kPlaces,
  kPlacesHere,
  kArrived,  // ExpertRows
  kExpertUp,
  kExpertAct,  // [N, U] [N, F]: the activation times its weight
  kExpertUpGradient,
  kLogitsGradient,  // [N, U] [M, E]
  kRowsHome,
  kRowsHere,
  kRowsAct,
  kRowsActGradient,  // [R, L] [N, L] [N, F] [N, F]
  kWeightsGradient,
  kRouterInput,
  kRouterGradient,  // [M, k] [M, C] in f32, [M, C] in f32
  kShared,          // those of the shared expert
  kLatent = kShared + SharedExpert::kTensors
};
static_assert(kLatent + LatentExperts::kTensors <= kMostTensors);

constexpr ExpertRows::Numbers kRowNumbers{
    kIds,    kOffsets,    kSlots,      kRows,        kOffsetsOfSources,    kOffsetsHere,
    kOnHost, kHereOnHost, kRowWeights, kWeightsHere, kWeightGradientsHere, kTokensSent,
    kPlaces, kPlacesHere, kArrived};

struct MoeSizes {
  int64_t ffn = 0, up = 0;          ///< of the widest part of an expert
  int64_t rows = 0, rows_here = 0;  ///< R, N
};
MoeSizes sizes_of(const MoePlan& plan, const LayerShape& s) {
  const int64_t parts = s.tensor / s.token_parts, ffn = (plan.ffn + parts - 1) / parts;
  const Dispatch dispatch = plan.dispatch(s);
  return {ffn, is_gated(plan.activation) ? 2 * ffn : ffn, ExpertRows::own_rows(s, dispatch),
          ExpertRows::most_rows(s, dispatch)};
}

class Moe : public Sublayer {
 public:
  Moe(const MoePlan& plan, const LayerContext& c, const SublayerUses& uses)
      : plan_(plan),
        ffn_(c.params.weight(uses.use(plan.down_weight)).cols),
        up_columns_(is_gated(plan.activation) ? 2 * ffn_ : ffn_),
        activation_(plan.activation, plan.limit),
        norm_(plan.norm, uses, kNormNumbers),
        router_(c, uses.use(plan.router_weight), uses.use(plan.router_bias), plan.experts),
        rows_(c, kRowNumbers, plan.dispatch(c.shape)),
        selection_bias_(uses.use(plan.selection_bias)),
        up_bias_(uses.use(plan.up_bias)),
        down_bias_(uses.use(plan.down_bias)),
        up_(c, uses.use(plan.up_weight), -1, rows_.experts_here() * up_columns_, plan.width_of_rows(c.shape),
            {}, ProductFormat(plan.fp8, plan.fp8.keeps_in, rows_.experts_here())),
        down_(c, uses.use(plan.down_weight), -1, rows_.experts_here() * plan.width_of_rows(c.shape), ffn_, {},
              ProductFormat(plan.fp8, plan.fp8.keeps_out, rows_.experts_here())),
        exit_(plan.norm_after, uses, kExitNumbers, {plan.after_weight, plan.after_bias}) {
    if (plan.shared.ffn > 0)
      shared_.emplace(c, kShared, plan.shared, activation_, is_gated(plan.activation),
                      SharedExpert::Weights{uses.use(plan.shared_up_weight),
                                            uses.use(plan.shared_down_weight), uses.use(plan.shared_gate)},
                      plan.fp8);
    if (plan.latent > 0)
      latent_.emplace(c, kLatent, plan.latent,
                      LatentExperts::Weights{uses.use(plan.latent_in), uses.use(plan.latent_out)}, plan.fp8);
  }

  void pack(const LayerContext& c) override {
    router_.pack(c);
    up_.pack(c);
    down_.pack(c);
    if (shared_) shared_->pack(c);
    if (latent_) latent_->pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    return whole(c, t, previous, delta, false);
  }

  void recompute(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    if (exit_.keeps())
      whole(c, t, previous, delta, true);
    else
      without_output(c, t, previous, delta);
  }

  void recompute_cheap(const LayerContext& c, Tensors& t) override {
    norm_.apply(c, t);
    activate(c, t);
    if (shared_) shared_->recompute_cheap(c, t);
  }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    exit_.backward_input(c, t, dout, at);
    const Matrix up = here(t, kExpertUp), act = here(t, kRowsAct), dact = here(t, kRowsActGradient),
                 dup = here(t, kExpertUpGradient), partial = c.scratch.partial;
    if (latent_) latent_->leave_backward(c, t, t[size_t(exit_.gradient())]);
    const Matrix dy = t[size_t(exit_.gradient())];
    const Matrix dout_here = send(c, t, sum_gradient(t), [&] {
      if (shared_) shared_->backward_input(c, t, dy);
    });
    rows_.multiply_backward(c, t, dout_here, down_, dact);
    activation_.forward(c, up, act);
    if (c.weight_half_follows) {
      rows_.scale(c, t, t[kWeights], act, here(t, kExpertAct));  // the weight half makes cheap tensors later
      down_gradients(c, t, dout_here, at);
    }
    if (rows_.may_drop()) clear(c, t[kWeightsGradient]);
    rows_.scale_backward(c, t, t[kWeights], act, dact, t[kWeightsGradient]);
    if (adds_down_bias(c)) rows_.bias_weights(c, t, dout_here, down_bias_, t[kWeightsGradient]);
    rows_.give_weights_back(c, t, t[kWeightsGradient]);
    activation_.backward(c, up, dact, dup);
    const Matrix din_here = rows_here(c, t);
    rows_.multiply_backward(c, t, dup, up_, din_here);
    rows_.give_back(c, t, din_here, t[kRowsHome]);
    rows_.combine(c, t, t[kRowsHome], latent_ ? latent_->in_gradient(t) : partial);
    if (latent_) latent_->enter_backward(c, t, partial);
    if (shared_) shared_->add_gradient(c, t, t[kRouterGradient], t[kRouterInput], partial);
    router_backward(c, t, partial);
    norm_.backward_input(c, t, c.tp.leave(partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    exit_.backward_weight(c, t, at);
    if (!c.weight_half_follows) down_gradients(c, t, send(c, t, sum_gradient(t), {}), at);
    const Matrix dup = here(t, kExpertUpGradient), x = router_input(c, t);
    if (up_bias_ >= 0) rows_.bias_gradient(c, t, dup, up_bias_, {}, at);
    const Matrix x_here = send(c, t, input_of_experts(t), [&] {
      if (shared_) shared_->backward_weight(c, t, t[size_t(exit_.gradient())], t[kNorm], x, at);
    });
    rows_.weight_gradient(c, t, dup, x_here, up_, at);
    if (latent_) latent_->backward_weight(c, t, t[size_t(exit_.gradient())], t[kNorm], at);
    router_.backward_weight(c, t[kLogitsGradient], x, at);
    if (selection_bias_ >= 0) add_counts(c, t[kCounts], at);
    norm_.backward_weight(c, t, at);
  }

 private:
  /// Of the experts' last products, from the gradient of their rows here: made with the gradient of the
  /// input, for which these rows have come, or where the weight half runs apart, when they have come again.
  void down_gradients(const LayerContext& c, Tensors& t, Matrix dout, LanePlace at) const {
    rows_.weight_gradient(c, t, dout, here(t, kExpertAct), down_, at);
    if (down_bias_ >= 0) rows_.bias_gradient(c, t, dout, down_bias_, t[kWeights], at);
  }

  /// The counts of each context block to its lane.
  void add_counts(const LayerContext& c, Matrix counts, LanePlace at) const {
    const int64_t blocks = c.shape.cut.blocks_here(), rows = counts.rows / blocks;
    for (int block = 0; block < blocks; ++block)
      c.backend.run(c.stream,
                    kernels::AddCounts{.counts = counts.row_range(block * rows, rows),
                                       .sums = vector_gradient(c.params, selection_bias_, at.lane + block),
                                       .accumulate = !at.first});
  }

  /// Once for each micro-batch, and here, where the bias is at hand.
  void count_margins(const LayerContext& c, const Tensors& t, const Margins& margins) const {
    c.backend.run(c.stream, kernels::CountMargins{.router = plan_.router,
                                                  .logits = t[kLogits],
                                                  .bias = vector_weight(c.params, selection_bias_),
                                                  .ids = t[kIds],
                                                  .sums = margins.sums,
                                                  .range = margins.range});
  }

  /// As far as the input of the last product; of a shared expert, where the output is made, its product, too.
  /// again: see ExpertRows::arrange.
  void activated(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta, bool again,
                 bool makes_output) const {
    norm_.forward(c, t, previous, delta);
    router_.forward(c, router_input(c, t), t[kLogits]);
    // Behind a cache of keys there are fewer tokens than in a sequence.
    c.backend.run(c.stream, kernels::Route{.router = plan_.router,
                                           .seq_len = std::min(route_tokens(c.shape), t[kLogits].rows),
                                           .logits = t[kLogits],
                                           .ids = t[kIds],
                                           .weights = t[kWeights],
                                           .counts = t[kCounts],
                                           .bias = vector_weight(c.params, selection_bias_)});
    if (c.expert_counts)
      c.backend.copy_to_host(c.stream, c.expert_counts, t[kCounts].data,
                             size_t(t[kCounts].count()) * sizeof(int32_t));
    for (const Margins& margins : c.margins)
      if (margins.use == selection_bias_ && c.counts && !again) count_margins(c, t, margins);
    if (latent_) latent_->enter(c, t, t[kNorm]);
    rows_.arrange(c, t, t[kWeights], again);
    rows_.send_weights(c, t, t[kWeights]);
    const Matrix up = here(t, kExpertUp);
    const Matrix x_here = send(c, t, input_of_experts(t), [&] {
      if (shared_) shared_->forward(c, t, t[kNorm], router_input(c, t), makes_output);
    });
    rows_.multiply(c, t, x_here, up_, up);
    if (up_bias_ >= 0) rows_.add_bias(c, t, up, up_bias_, {});
    activate(c, t);
  }

  Matrix whole(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta, bool again) const {
    activated(c, t, previous, delta, again, true);
    sum_of_experts(c, t, latent_ ? latent_->sum(t) : exit_.part(c, t));
    if (latent_) latent_->leave(c, t, exit_.part(c, t));
    if (shared_) shared_->add_output(c, t, exit_.part(c, t));
    return exit_.forward(c, t);
  }

  void without_output(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
    activated(c, t, previous, delta, true, false);
    if (latent_) sum_of_experts(c, t, latent_->sum(t));
  }

  /// Of each token the sum of its experts [M, L].
  void sum_of_experts(const LayerContext& c, Tensors& t, Matrix sum) const {
    const Matrix out = rows_here(c, t);
    rows_.multiply(c, t, here(t, kExpertAct), down_, out);
    if (adds_down_bias(c)) rows_.add_bias(c, t, out, down_bias_, t[kWeights]);
    rows_.give_back(c, t, out, t[kRowsHome]);
    rows_.combine(c, t, t[kRowsHome], sum);
  }
  Matrix input_of_experts(const Tensors& t) const { return latent_ ? latent_->in(t) : t[kNorm]; }
  Matrix sum_gradient(const Tensors& t) const {
    return latent_ ? latent_->sum_gradient(t) : t[size_t(exit_.gradient())];
  }
  static void clear(const LayerContext& c, Matrix m) {
    c.backend.run(c.stream, kernels::FillZero{.data = m.data, .size = size_t(m.count()) * size_of(m.dtype)});
  }

  /// Of the ranks whose parts of a row's sum are joined, one adds the biases.
  bool adds_down_bias(const LayerContext& c) const {
    return down_bias_ >= 0 && (c.tp.rank() == 0 || c.shape.token_parts > 1);
  }

  void activate(const LayerContext& c, Tensors& t) const {
    const Matrix act = here(t, kRowsAct);
    activation_.forward(c, here(t, kExpertUp), act);
    rows_.scale(c, t, t[kWeights], act, here(t, kExpertAct));
  }

  /// Rows of what tokens have at their experts, in scratch.
  /// of_shared: what of a shared expert is enqueued while they are on their way.
  Matrix send(const LayerContext& c, Tensors& t, Matrix of_tokens,
              const ExpertRows::Meanwhile& of_shared) const {
    return rows_.send(c, t, of_tokens, t[kRowsHome], t[kRowsHere],
                      shared_ ? of_shared : ExpertRows::Meanwhile());
  }
  Matrix rows_here(const LayerContext& c, const Tensors& t) const {
    return here(t, c.shape.expert_ranks > 1 ? kRowsHere : kRowsHome);
  }
  /// Memory is for the widest part of an expert, as every tensor rank plans it.
  Matrix here(const Tensors& t, int number) const {
    const Matrix rows = rows_.here(t, t[size_t(number)]);
    switch (number) {
      case kExpertUp:
      case kExpertUpGradient: return rows.columns(0, up_columns_);
      case kExpertAct:
      case kRowsAct:
      case kRowsActGradient: return rows.columns(0, ffn_);
      default: return rows;
    }
  }

  /// What the router reads is in f32, whatever activations are.
  Matrix router_input(const LayerContext& c, Tensors& t) const {
    if (c.shape.compute == DType::f32) return t[kNorm];
    c.backend.run(c.stream, kernels::Copy{.src = t[kNorm], .dst = t[kRouterInput]});
    return t[kRouterInput];
  }

  /// dx += the gradient through the router. Of the ranks that share a token, each has a part of its weights'
  /// gradient, and one adds that of the router's own losses.
  void router_backward(const LayerContext& c, Tensors& t, Matrix dx) const {
    const float own = c.tp.rank() == 0 ? c.loss_scale : 0;
    c.backend.run(c.stream, kernels::RouteBackward{.router = plan_.router,
                                                   .seq_len = route_tokens(c.shape),
                                                   .aux = plan_.aux_loss * own,
                                                   .z = plan_.z_loss * own,
                                                   .logits = t[kLogits],
                                                   .ids = t[kIds],
                                                   .counts = t[kCounts],
                                                   .dweights = t[kWeightsGradient],
                                                   .dlogits = t[kLogitsGradient]});
    router_.backward_input(c, t[kLogitsGradient], t[kRouterGradient], t[kRouterInput], dx);
  }

  const MoePlan& plan_;
  const int64_t ffn_, up_columns_;  ///< F, U
  const FfnStep activation_;
  EntryNorm norm_;
  RouterProduct router_;
  ExpertRows rows_;
  int selection_bias_, up_bias_, down_bias_;
  Linear up_, down_;
  std::optional<SharedExpert> shared_;
  std::optional<LatentExperts> latent_;
  Exit exit_;
};

}  // namespace

Dispatch MoePlan::dispatch(const LayerShape& s) const {
  Dispatch dispatch{.experts = experts,
                    .top_k = top_k,
                    .groups = router.groups,
                    .top_groups = router.top_groups,
                    .by_weight = drops_by_weight};
  const auto capacity_of = [&](int64_t tokens) {
    const double mean = double(tokens * top_k) / double(experts);
    // What the product of a decimal fraction has too much by rounding is no row.
    return int64_t(std::ceil(capacity_factor * mean * (1 - 1e-12)));
  };
  if (capacity_factor == 0) return dispatch;
  const int64_t tokens = ExpertRows::tokens_of_source(s);
  dispatch.capacity = capacity_of(tokens);
  dispatch.sequences = tokens / route_tokens(s);
  dispatch.sequence_capacity = capacity_of(route_tokens(s));
  return dispatch;
}

std::vector<TensorDeclaration> MoePlan::tensors(const LayerShape& s) const {
  const MoeSizes sizes = sizes_of(*this, s);
  std::vector<TensorDeclaration> list = {
      {kInput, Life::input, s.compute, s.local_rows, s.hidden},
      {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
      {kLogits, Life::activation, DType::f32, s.rows, experts},
      {kIds, Life::activation, DType::i32, s.rows, top_k},
      {kWeights, Life::activation, DType::f32, s.rows, top_k},
      {kCounts, Life::activation, DType::i32, s.rows / route_tokens(s), experts},
      {kExpertUp, Life::activation, s.compute, sizes.rows_here, sizes.up, true},
      {kExpertAct, Life::cheap, s.compute, sizes.rows_here, sizes.ffn, true},
      {kExpertUpGradient, Life::gradient, s.compute, sizes.rows_here, sizes.up, true},
      {kLogitsGradient, Life::gradient, DType::f32, s.rows, experts},
      {kRowsHome, Life::scratch, s.compute, sizes.rows, width_of_rows(s), s.expert_ranks == 1},
      {kRowsAct, Life::scratch, s.compute, sizes.rows_here, sizes.ffn, true},
      {kRowsActGradient, Life::scratch, s.compute, sizes.rows_here, sizes.ffn, true},
      {kWeightsGradient, Life::scratch, DType::f32, s.rows, top_k},
      {kRouterGradient, Life::scratch, DType::f32, s.rows, s.hidden}};
  // With a capacity R is no multiple of the tokens, but for special sizes.
  constexpr int kOfRows[] = {kExpertUp, kExpertAct, kExpertUpGradient, kRowsHome, kRowsAct, kRowsActGradient};
  for (TensorDeclaration& d : list)
    d.whole = capacity_factor > 0 && std::ranges::find(kOfRows, d.number) != std::end(kOfRows);
  ExpertRows::declare(list, s, kRowNumbers, dispatch(s), width_of_rows(s));
  if (s.expert_ranks > 1)
    list.push_back({kRowsHere, Life::scratch, s.compute, sizes.rows_here, width_of_rows(s)});
  if (s.compute != DType::f32) list.push_back({kRouterInput, Life::scratch, DType::f32, s.rows, s.hidden});
  Widest of_shared;
  SharedExpert::widen(of_shared, s, shared, activation);
  declare_fp8(list, s, *this, std::max(s.rows, ExpertRows::rows_of_source(s, dispatch(s))),
              std::max(experts / s.expert_ranks * width_of_rows(s) * std::max(sizes.up, sizes.ffn),
                       s.hidden * std::max({of_shared.columns, of_shared.depth, latent})));
  SharedExpert::declare(list, s, kShared, shared, activation);
  LatentExperts::declare(list, s, kLatent, latent);
  EntryNorm::declare(list, s, kNormNumbers, norm);
  Exit::declare(list, s, kExitNumbers, norm_after);
  return list;
}

void MoePlan::widen(Widest& widest, const LayerShape& s) const {
  const MoeSizes sizes = sizes_of(*this, s);
  widest.columns = std::max({widest.columns, s.hidden, sizes.up, latent});
  widest.depth = std::max({widest.depth, s.hidden, sizes.ffn, latent});
  SharedExpert::widen(widest, s, shared, activation);
}

std::unique_ptr<Sublayer> MoePlan::make(const LayerContext& c, const SublayerUses& uses,
                                        const Tensors&) const {
  return std::make_unique<Moe>(*this, c, uses);
}

}  // namespace trainctl
