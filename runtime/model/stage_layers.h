// Which layers each virtual stage has: as the spec gives them, or so that the slowest stage computes as
// little as possible. The cut never changes bits. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "parallel/virtual_stages.h"
#include "runtime/model/flops.h"

namespace trainctl {

/// The layers of each virtual stage, in the order of the model. In every cut each virtual stage has something
/// to compute: the first the embedding, the last the head, others a layer. Where all layers cost the same, it
/// is one of these cuts whose dearest pipeline stage costs least; the other stages are as even as that
/// allows, and so are the virtual stages of each. Of two equal stages the later one takes the layer, because
/// it holds fewer micro-batches. Where layers differ, the dearest stage is the cheapest possible with one
/// virtual stage each; with several no shift of layers makes the stages more even. Takes layers + 2 >=
/// virtual stages.
///   slowness  of each stage: its time for what others do in one; empty: all are alike
std::vector<int64_t> balanced_layers(const PartFlops& costs, const parallel::VirtualStages& stages,
                                     const std::vector<double>& slowness = {});
/// What each stage computes, times its slowness.
std::vector<double> stage_costs(const std::vector<int64_t>& counts, const parallel::VirtualStages& stages,
                                const PartFlops& costs, const std::vector<double>& slowness = {});

/// The layers of each virtual stage of a job, in the order of the model: parallelism.stage_layers, or
/// balanced by counted FLOPs. They are those without recomputation: so the layers stay where they are when
/// the spec computes more of them again, and each such layer takes less memory.
std::vector<int64_t> stage_layers(const ModelPlan& model, const ParallelSpec& parallelism, int64_t seq_len);

/// What one pipeline stage computes.
struct StageWork {
  std::vector<int64_t> layers;  ///< of its virtual stages, in the order of the model
  double share = 0;             ///< of the model's FLOPs
};
/// Of each stage, its local virtual stages in order. counts: of stage_layers.
std::vector<StageWork> stage_work(const std::vector<int64_t>& counts, const parallel::VirtualStages& stages,
                                  const PartFlops& costs);

}  // namespace trainctl
