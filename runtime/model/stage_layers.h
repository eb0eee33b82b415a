// Which layers each virtual stage has: as the spec gives them, or so that the slowest stage computes as
// little as possible. The cut never changes bits. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/model/flops.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// The layers of each of stages * virtual_stages virtual stages, in the order of the model. In every cut
/// each virtual stage has something to compute: the first the embedding, the last the head, others a layer.
/// Of these cuts it is one whose dearest pipeline stage costs least; the other stages are as even as that
/// allows, and so are the virtual stages of each. Of two equal stages the later one takes the layer, because
/// it holds fewer micro-batches. Takes layers + 2 >= stages * virtual_stages.
std::vector<int64_t> balanced_layers(int64_t layers, int stages, int virtual_stages, const PartFlops& costs);

/// The layers of each virtual stage of a job, in the order of the model: parallelism.stage_layers, or
/// balanced by counted FLOPs. They are those without recomputation: so the layers stay where they are when the
/// spec computes more of them again, and each such layer takes less memory.
std::vector<int64_t> stage_layers(const JobSpec& job);

/// What one pipeline stage computes.
struct StageWork {
  std::vector<int64_t> layers;  ///< of its virtual stages, in the order of the model
  double share = 0;             ///< of the model's FLOPs
};
/// Of each stage. costs: part_flops of the job's model.
std::vector<StageWork> stage_work(const JobSpec& job, const PartFlops& costs);

}  // namespace trainctl
