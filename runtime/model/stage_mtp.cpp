// The passes of multi-token prediction (MtpPlan). A module lies behind the final norm and before the head,
// whose part makes the products of all of them: so the logits of one of them exist at a time.
#include "runtime/model/stage_impl.h"

namespace trainctl {

using kernels::Matrix;

namespace {

/// The two halves of MtpRecord::pair.
Matrix embedded_half(const Matrix& pair) { return pair.columns(0, pair.cols / 2); }
Matrix hidden_half(const Matrix& pair) { return pair.columns(pair.cols / 2, pair.cols / 2); }

}  // namespace

void StageModel::Impl::pack_module(const MtpUses& module, size_t i) {
  mtp_layers[i].pack(context);
  backend.run(stream, kernels::Pack{.w = params.weight(module.own.use(MtpPlan::join_weight)),
                                    .packed = mtp_joins[i].get()});
}

void StageModel::Impl::embed_ahead(const VirtualStageUses& virtual_stage, Slot& s, const MicroBatch& mb) {
  for (size_t i = 0; i < s.mtp.size(); ++i)
    look_up(virtual_stage, virtual_stage.mtp_embedding, mb.ids(mtp_field(BatchField::mtp_tokens, i)),
            s.mtp[i].embedded);
}

void StageModel::Impl::module_forward(const VirtualStageUses& virtual_stage, Slot& s, size_t i,
                                      int32_t* counts) {
  stage_memory::MtpRecord& r = s.mtp[i];
  const SublayerUses& own = virtual_stage.mtp[i].own;
  const auto norm = [&](const Matrix& x, const Matrix& delta, int weight, int bias, const Matrix& sum,
                        const Matrix& y, float* stats) {
    backend.run(stream, kernels::NormForward{.kind = uses.final_norm.kind,
                                             .x = x,
                                             .delta = delta,
                                             .weight = vector_weight(params, own.use(weight)),
                                             .bias = vector_weight(params, own.use(bias)),
                                             .eps = uses.final_norm.eps,
                                             .sum = sum,
                                             .y = y,
                                             .stats = stats,
                                             .weight_offset = uses.final_norm.weight_offset});
  };
  using M = MtpPlan;
  norm(r.embedded, {}, M::embedding_weight, M::embedding_bias, {}, embedded_half(r.pair), r.embedded_stats);
  norm(i == 0 ? s.final_out : s.mtp[i - 1].out, {}, M::hidden_weight, M::hidden_bias, {}, hidden_half(r.pair),
       r.hidden_stats);
  backend.run(stream,
              kernels::LinearForward{.x = r.pair, .w = mtp_joins[i].get(), .y = r.layer.front()[kInput]});
  context.expert_counts = counts;
  const Matrix delta = mtp_layers[i].forward(context, r.layer, {}, {});
  context.expert_counts = nullptr;
  norm(r.layer.back()[kInput], delta, M::out_weight, M::out_bias, r.sum, r.out, r.stats);
}

StageModel::Impl::HeadPass StageModel::Impl::module_pass(Slot& s, const MicroBatch& mb, size_t i,
                                                         double* loss) {
  const auto* const weights = mb.arrays[mtp_field(BatchField::mtp_weights, i)];
  return {.input = tp.enter(s.mtp[i].out, memory.shared.head_input),
          .gradient = s.mtp[i].gradient,
          .targets = mb.ids(mtp_field(BatchField::mtp_targets, i)),
          .masks = true,
          .weights = static_cast<const float*>(weights),
          .scale = mb.mtp_scale[i],
          .train = true,
          .first_of_head = false,
          .loss = loss + (i + 1) * size_t(shape.cut.blocks_here())};
}

void StageModel::Impl::module_backward(const VirtualStageUses& virtual_stage, Slot& s, size_t i,
                                       const MicroBatch& mb) {
  stage_memory::MtpRecord& r = s.mtp[i];
  Shared& m = memory.shared;
  const MtpUses& module = virtual_stage.mtp[i];
  const SublayerUses& own = module.own;
  const auto norm = [&](const Matrix& dy, const Matrix& x, const float* stats, int weight, int bias,
                        const Matrix& dresidual, const Matrix& dx) {
    backend.run(stream, kernels::NormBackward{.kind = uses.final_norm.kind,
                                              .dy = dy,
                                              .x = x,
                                              .weight = vector_weight(params, own.use(weight)),
                                              .stats = stats,
                                              .dresidual = dresidual,
                                              .dx = dx,
                                              .dweight = vector_gradient(params, own.use(weight), mb.lane),
                                              .dbias = vector_gradient(params, own.use(bias), mb.lane),
                                              .accumulate = !mb.first_of_lane,
                                              .weight_offset = uses.final_norm.weight_offset});
  };
  using M = MtpPlan;
  const Matrix dout = m.pong, din = m.ping;
  norm(r.gradient, r.sum, r.stats, M::out_weight, M::out_bias, {}, dout);
  const LanePlace at{mb.lane, mb.first_of_lane};
  Layer& layer = mtp_layers[i];
  if (module.layer.kept == Kept::input) layer.recompute(context, r.layer);
  layer.backward_input(context, r.layer, dout, din, at);
  if (module.layer.kept == Kept::all_but_cheap) layer.recompute_cheap(context, r.layer);
  layer.backward_weight(context, r.layer, at);
  backend.run(stream,
              kernels::LinearBackwardInput{.dy = din, .w = mtp_joins[i].get(), .dx = m.pair_gradient});
  backend.run(stream, kernels::LinearBackwardWeight{.dy = din,
                                                    .x = r.pair,
                                                    .dw = params.gradient(own.use(M::join_weight), mb.lane),
                                                    .accumulate = !mb.first_of_lane});
  norm(embedded_half(m.pair_gradient), r.embedded, r.embedded_stats, M::embedding_weight, M::embedding_bias,
       {}, m.embedded_gradients[i]);
  const Matrix hidden = i == 0 ? s.final_out : s.mtp[i - 1].out;
  const Matrix hidden_gradient = i == 0 ? s.final_gradient : s.mtp[i - 1].gradient;
  norm(hidden_half(m.pair_gradient), hidden, r.hidden_stats, M::hidden_weight, M::hidden_bias,
       hidden_gradient, hidden_gradient);
}

void StageModel::Impl::ahead_weight(const VirtualStageUses& virtual_stage, const MicroBatch& mb) {
  const int use = virtual_stage.mtp_embedding;
  zero_gradients(use, mb);
  for (size_t i = 0; i < mtp_layers.size(); ++i)
    backend.run(stream, kernels::EmbeddingBackward{.ids = mb.ids(mtp_field(BatchField::mtp_tokens, i)),
                                                   .dout = tp.enter(memory.shared.embedded_gradients[i],
                                                                    memory.shared.scratch.partial),
                                                   .vocab_begin = vocab_begin(virtual_stage),
                                                   .dtable = params.gradient(use, mb.lane),
                                                   .scale = uses.ends.embedding_scale});
}

}  // namespace trainctl
