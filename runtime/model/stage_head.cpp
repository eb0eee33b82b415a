// The products with the head: the loss of the next token, and of each module of multi-token prediction.
#include "runtime/model/stage_impl.h"

namespace trainctl {

using kernels::Matrix;

void StageModel::Impl::heads_forward(const VirtualStageUses& virtual_stage, Slot& s, const MicroBatch& mb,
                                     bool train, double* loss) {
  HeadPass pass{.input = memory.shared.head_input,
                .gradient = s.final_gradient,
                .targets = mb.ids(BatchField::targets),
                .masks = options.masks_targets,
                .weights = mb.weights(),
                .scale = options.loss_scale * mb.loss_scale,
                .train = train,
                .loss = loss};
  if (train && !s.mtp.empty()) pass.input = tp.enter(s.final_out, memory.shared.head_input);
  head_forward(virtual_stage, mb, pass);
  if (!train) return;
  if (watched_losses)
    backend.copy_to_host(stream, watched_losses + int64_t(mb.index) * shape.rows, memory.shared.loss,
                         size_t(shape.rows) * sizeof(float));
  for (size_t i = 0; i < s.mtp.size(); ++i) head_forward(virtual_stage, mb, module_pass(s, mb, i, loss));
  merge_lanes(virtual_stage.head, virtual_stage.head + 1, mb);
}

void StageModel::Impl::head_forward(const VirtualStageUses& virtual_stage, const MicroBatch& mb,
                                    const HeadPass& pass) {
  Shared& m = memory.shared;
  const int64_t v = params.weight(virtual_stage.head).rows, begin = vocab_begin(virtual_stage);
  const Matrix logits = m.logits.columns(0, v);
  backend.run(stream, kernels::LinearForward{.x = pass.input, .w = head.get(), .y = logits});
  backend.run(stream, kernels::CrossEntropyStats{.logits = logits,
                                                 .targets = pass.targets,
                                                 .vocab_begin = begin,
                                                 .stats = m.stats,
                                                 .form = uses.ends.logits});
  const float* stats = m.stats;
  if (tp.size() > 1) {
    tp.gather(kernels::matrix(m.stats, DType::f32, shape.rows, 3),
              kernels::matrix(m.all_stats, DType::f32, shape.rows * tp.size(), 3));
    stats = m.all_stats;
  }
  const float z_loss = pass.train ? uses.ends.z_loss : 0;
  backend.run(stream, kernels::CrossEntropyCombine{.stats = stats,
                                                   .parts = tp.size(),
                                                   .m = shape.rows,
                                                   .lse = m.lse,
                                                   .loss = m.loss,
                                                   .targets = pass.masks ? pass.targets : nullptr,
                                                   .weights = pass.weights,
                                                   .z_loss = z_loss});
  backend.run(stream, kernels::Sum{.x = m.loss, .n = shape.rows, .out = pass.loss});
  if (!pass.train) return;
  backend.run(stream, kernels::CrossEntropyBackward{.logits = logits,
                                                    .targets = pass.targets,
                                                    .vocab_begin = begin,
                                                    .lse = m.lse,
                                                    .scale = pass.scale,
                                                    .form = uses.ends.logits,
                                                    .weights = pass.weights,
                                                    .z_loss = z_loss});
  backend.run(stream,
              kernels::LinearBackwardInput{.dy = logits, .w = head.get(), .dx = m.head_input_gradient});
  const Matrix dy = tp.leave(m.head_input_gradient, pass.gradient);
  if (dy.data != pass.gradient.data) backend.run(stream, kernels::Copy{.src = dy, .dst = pass.gradient});
  backend.run(stream, kernels::LinearBackwardWeight{.dy = logits,
                                                    .x = pass.input,
                                                    .dw = params.gradient(virtual_stage.head, mb.lane),
                                                    .accumulate = !mb.first_of_lane || !pass.first_of_head});
}

}  // namespace trainctl
