// The sizes of a model's layers on a rank.
#include <algorithm>

#include "runtime/model/model_plan.h"

namespace trainctl {

LayerShape layer_shape(const ModelPlan& model, const BatchSpec& batch, int64_t seq_len,
                       const ParallelSpec& parallelism) {
  const int tensor = parallelism.tensor;
  const parallel::SequenceCut cut{.blocks = int(parallelism.context_blocks),
                                  .ranks = parallelism.context,
                                  .sequences = batch.micro_sequences,
                                  .seq_len = seq_len};
  const int64_t rows = cut.rows();
  return {.compute = model.precision.activations,
          .micro_sequences = batch.micro_sequences,
          .seq_len = seq_len,
          .hidden = model.hidden,
          .tensor = tensor,
          .rows = rows,
          .local_rows = parallelism.sequence_parallel && tensor > 1 ? rows / tensor : rows,
          .cut = cut,
          .expert_ranks = parallelism.expert,
          .token_parts = parallelism.token_parts(),
          .exchanges_heads = parallelism.exchanges_heads()};
}

Widest widest_of(const ModelPlan& model, const LayerShape& shape) {
  Widest widest;
  for (const LayerRef& layer : model.unlike_layers()) widen(widest, *layer, shape);
  if (!model.mtp.empty()) {
    widest.columns = std::max(widest.columns, 2 * model.hidden);
    widest.depth = std::max(widest.depth, 2 * model.hidden);
  }
  return widest;
}

}  // namespace trainctl
