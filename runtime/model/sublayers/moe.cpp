#include "runtime/model/sublayers/moe.h"

#include <algorithm>

#include "runtime/model/sublayers/ffn_activation.h"
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {
namespace {

using kernels::Matrix;

enum MoeNumber {
  kLogits = kFirstAfterNorm,
  kIds,
  kWeights,
  kCounts,  // [M, E] [M, k] [M, k] [sequences, E]
  kOffsets,
  kSlots,
  kRows,  // [E + 1] [R] [R]
  kExpertUp,
  kExpertAct,  // [R, U] [R, F]: the activation times its weight
  kExpertUpGradient,
  kLogitsGradient,  // [R, U] [M, E]
  kRowsIn,
  kRowsAct,
  kRowsActGradient,  // [R, C] [R, F] [R, F]
  kWeightsGradient,
  kRouterInput,
  kRouterGradient  // [M, k] [M, C] in f32, [M, C] in f32
};

struct MoeSizes {
  int64_t ffn = 0, up = 0, rows = 0;
};
MoeSizes sizes_of(const MoePlan& plan, const LayerShape& s) {
  const int64_t ffn = plan.ffn / s.tensor;
  return {ffn, is_gated(plan.activation) ? 2 * ffn : ffn, s.rows * plan.top_k};
}

class Moe : public Sublayer {
 public:
  Moe(const MoePlan& plan, const LayerContext& c, const SublayerUses& uses)
      : plan_(plan),
        sizes_(sizes_of(plan, c.shape)),
        activation_(plan.activation, plan.limit),
        norm_(plan.norm, uses, kNormNumbers),
        router_weight_(uses.use(plan.router_weight)),
        router_(c.backend.make_packed(plan.experts, c.shape.hidden, DType::f32)),
        up_(c, uses.use(plan.up_weight), -1, plan.experts * sizes_.up, c.shape.hidden, {}),
        down_(c, uses.use(plan.down_weight), -1, plan.experts * c.shape.hidden, sizes_.ffn, {}),
        exit_(plan.norm_after, uses, kExitNumbers, {plan.after_weight, plan.after_bias}) {}

  void pack(const LayerContext& c) override {
    c.backend.run(c.stream, kernels::Pack{.w = c.params.weight(router_weight_), .packed = router_.get()});
    up_.pack(c);
    down_.pack(c);
  }

  Matrix forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) override {
    activated(c, t, previous, delta);
    c.backend.run(c.stream,
                  kernels::GroupedForward{
                      .x = t[kExpertAct], .offsets = t[kOffsets], .w = &down_.packed(), .y = t[kRowsIn]});
    c.backend.run(c.stream, kernels::CombineRows{.x = t[kRowsIn], .rows = t[kRows], .out = exit_.part(c, t)});
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
    activate(c, t);
  }

  void backward_input(const LayerContext& c, Tensors& t, Matrix dout, Matrix din, LanePlace at) override {
    exit_.backward_input(c, t, dout, at);
    const Matrix dact = t[kRowsActGradient], dup = t[kExpertUpGradient], partial = c.scratch.partial;
    gather(c, t, t[size_t(exit_.gradient())]);
    c.backend.run(c.stream, kernels::GroupedBackwardInput{
                                .dy = t[kRowsIn], .offsets = t[kOffsets], .w = &down_.packed(), .dx = dact});
    activation_.forward(c, t[kExpertUp], t[kRowsAct]);
    c.backend.run(c.stream, kernels::ScaleRowsBackward{.x = t[kRowsAct],
                                                       .weights = t[kWeights],
                                                       .slots = t[kSlots],
                                                       .dy = dact,
                                                       .dweights = t[kWeightsGradient],
                                                       .dx = dact});
    activation_.backward(c, t[kExpertUp], dact, dup);
    c.backend.run(c.stream, kernels::GroupedBackwardInput{
                                .dy = dup, .offsets = t[kOffsets], .w = &up_.packed(), .dx = t[kRowsIn]});
    c.backend.run(c.stream, kernels::CombineRows{.x = t[kRowsIn], .rows = t[kRows], .out = partial});
    router_backward(c, t, partial);
    norm_.backward_input(c, t, c.tp.leave(partial, c.scratch.local), dout, din, at);
  }

  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) override {
    exit_.backward_weight(c, t, at);
    gather(c, t, t[size_t(exit_.gradient())]);
    weight_gradient(c, t, t[kRowsIn], t[kExpertAct], down_, at);
    gather(c, t, t[kNorm]);
    weight_gradient(c, t, t[kExpertUpGradient], t[kRowsIn], up_, at);
    c.backend.run(c.stream, kernels::LinearBackwardWeight{.dy = t[kLogitsGradient],
                                                          .x = router_input(c, t),
                                                          .dw = c.params.gradient(router_weight_, at.lane),
                                                          .accumulate = !at.first});
    norm_.backward_weight(c, t, at);
  }

 private:
  /// As far as the input of the last product.
  void activated(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
    norm_.forward(c, t, previous, delta);
    c.backend.run(c.stream,
                  kernels::LinearForward{.x = router_input(c, t), .w = router_.get(), .y = t[kLogits]});
    // Behind a cache of keys there are fewer tokens than in a sequence.
    const int64_t tokens = t[kLogits].rows;
    for (const int slots : {kSlots, kRows})
      t[size_t(slots)] = t[size_t(slots)].columns(0, tokens * plan_.top_k);
    c.backend.run(c.stream, kernels::Route{.router = plan_.router,
                                           .seq_len = std::min(c.shape.seq_len, tokens),
                                           .logits = t[kLogits],
                                           .ids = t[kIds],
                                           .weights = t[kWeights],
                                           .counts = t[kCounts]});
    if (c.expert_counts)
      c.backend.copy_to_host(c.stream, c.expert_counts, t[kCounts].data,
                             size_t(t[kCounts].count()) * sizeof(int32_t));
    c.backend.run(
        c.stream,
        kernels::SortByExpert{.ids = t[kIds], .offsets = t[kOffsets], .slots = t[kSlots], .rows = t[kRows]});
    gather(c, t, t[kNorm]);
    c.backend.run(c.stream,
                  kernels::GroupedForward{
                      .x = t[kRowsIn], .offsets = t[kOffsets], .w = &up_.packed(), .y = t[kExpertUp]});
    activate(c, t);
  }

  void activate(const LayerContext& c, Tensors& t) const {
    activation_.forward(c, t[kExpertUp], t[kRowsAct]);
    c.backend.run(
        c.stream,
        kernels::ScaleRows{.x = t[kRowsAct], .weights = t[kWeights], .slots = t[kSlots], .y = t[kExpertAct]});
  }

  /// The rows of what all tokens have, in the order of experts, into the scratch of rows.
  void gather(const LayerContext& c, Tensors& t, Matrix of_tokens) const {
    c.backend.run(c.stream, kernels::GatherRows{.x = of_tokens, .slots = t[kSlots], .out = t[kRowsIn]});
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
                                                   .seq_len = c.shape.seq_len,
                                                   .aux = plan_.aux_loss * own,
                                                   .z = plan_.z_loss * own,
                                                   .logits = t[kLogits],
                                                   .ids = t[kIds],
                                                   .counts = t[kCounts],
                                                   .dweights = t[kWeightsGradient],
                                                   .dlogits = t[kLogitsGradient]});
    c.backend.run(c.stream, kernels::LinearBackwardInput{
                                .dy = t[kLogitsGradient], .w = router_.get(), .dx = t[kRouterGradient]});
    if (c.shape.compute != DType::f32) {
      c.backend.run(c.stream,
                    kernels::AddRounded{.left = t[kRouterGradient], .right = widened(c, t, dx), .out = dx});
      return;
    }
    c.backend.run(c.stream, kernels::Add{.src = t[kRouterGradient], .dst = dx});
  }
  Matrix widened(const LayerContext& c, Tensors& t, Matrix x) const {
    c.backend.run(c.stream, kernels::Copy{.src = x, .dst = t[kRouterInput]});
    return t[kRouterInput];
  }

  void weight_gradient(const LayerContext& c, Tensors& t, Matrix dy, Matrix x, const Linear& of,
                       LanePlace at) const {
    c.backend.run(
        c.stream,
        kernels::GroupedBackwardWeight{
            .dy = dy, .x = x, .offsets = t[kOffsets], .dw = of.gradient(c, at), .accumulate = !at.first});
  }

  const MoePlan& plan_;
  const MoeSizes sizes_;
  const FfnStep activation_;
  EntryNorm norm_;
  int router_weight_;
  std::unique_ptr<kernels::PackedWeight> router_;
  Linear up_, down_;
  Exit exit_;
};

}  // namespace

std::vector<TensorDeclaration> MoePlan::tensors(const LayerShape& s) const {
  const MoeSizes sizes = sizes_of(*this, s);
  const int64_t sequences = s.rows / s.seq_len;
  std::vector<TensorDeclaration> list = {
      {kInput, Life::input, s.compute, s.local_rows, s.hidden},
      {kOutputGradient, Life::gradient, s.compute, s.rows, s.hidden},
      {kLogits, Life::activation, DType::f32, s.rows, experts},
      {kIds, Life::activation, DType::i32, s.rows, top_k},
      {kWeights, Life::activation, DType::f32, s.rows, top_k},
      {kCounts, Life::activation, DType::i32, sequences, experts},
      {kOffsets, Life::activation, DType::i32, 1, experts + 1},
      {kSlots, Life::activation, DType::i32, 1, sizes.rows},
      {kRows, Life::activation, DType::i32, 1, sizes.rows},
      {kExpertUp, Life::activation, s.compute, sizes.rows, sizes.up, true},
      {kExpertAct, Life::cheap, s.compute, sizes.rows, sizes.ffn, true},
      {kExpertUpGradient, Life::gradient, s.compute, sizes.rows, sizes.up, true},
      {kLogitsGradient, Life::gradient, DType::f32, s.rows, experts},
      {kRowsIn, Life::scratch, s.compute, sizes.rows, s.hidden, true},
      {kRowsAct, Life::scratch, s.compute, sizes.rows, sizes.ffn, true},
      {kRowsActGradient, Life::scratch, s.compute, sizes.rows, sizes.ffn, true},
      {kWeightsGradient, Life::scratch, DType::f32, s.rows, top_k},
      {kRouterGradient, Life::scratch, DType::f32, s.rows, s.hidden}};
  if (s.compute != DType::f32) list.push_back({kRouterInput, Life::scratch, DType::f32, s.rows, s.hidden});
  EntryNorm::declare(list, s, kNormNumbers, norm);
  Exit::declare(list, s, kExitNumbers, norm_after);
  return list;
}

void MoePlan::widen(Widest& widest, const LayerShape& s) const {
  const MoeSizes sizes = sizes_of(*this, s);
  widest.columns = std::max({widest.columns, s.hidden, sizes.up});
  widest.depth = std::max({widest.depth, s.hidden, sizes.ffn});
}

std::unique_ptr<Sublayer> MoePlan::make(const LayerContext& c, const SublayerUses& uses,
                                        const Tensors&) const {
  return std::make_unique<Moe>(*this, c, uses);
}

}  // namespace trainctl
