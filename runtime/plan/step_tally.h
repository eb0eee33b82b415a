// Counts what one rank of a job computes and sends in one step, by running that step on the tally twins of
// device and peers.
#pragma once
#include "kernels/tally.h"
#include "parallel/tally.h"
#include "runtime/plan/rank_plan.h"

namespace trainctl {

struct StepTally {
  kernels::WorkTally work;
  parallel::TrafficTally traffic;
};

/// Everything from the first action of the rank's step program to the last, token uploads and the exchange of
/// scalars left out. Takes time with the micro-batches and the rank's layers, not with their size.
/// messages: whether they are listed one by one (TrafficTally::detailed).
StepTally tally_step(const PlanBasis& basis, const parallel::MeshPosition& at, bool messages);

/// Runs steps of a job of one rank on a real device, of tokens and weights that are 0, and times every op.
/// Ops take as long with other numbers, where experts do not choose by them.
struct TimedSteps {
  kernels::WorkTally work;  ///< of all steps
  kernels::OpSeconds seconds;
};
TimedSteps time_steps(const PlanBasis& basis, std::unique_ptr<kernels::Backend> device, int steps);

/// Bytes that one rank sends in one step.
struct RankTraffic {
  double tensor = 0, pipeline = 0, data = 0;
  double context = 0, experts = 0;  ///< keys and values; rows of tokens
  double total() const { return tensor + pipeline + data + context + experts; }
};
/// Of tally_step. Past the micro-batches that fill the pipeline each further round of them sends as much, so
/// that only the first rounds are run.
RankTraffic rank_traffic(const PlanBasis& basis, const parallel::MeshPosition& at);

/// What one micro-batch computes and sends in one virtual stage of a rank, counted, the halves of the
/// backward pass apart. The head works in the forward half; full recomputation in the input half.
struct MicroBatchTally {
  StepTally forward, backward_input, backward_weight;
  double edge_bytes = 0;  ///< of what it sends along the pipeline
};
/// Of every virtual stage of the rank.
std::vector<MicroBatchTally> tally_micro_batch_ops(const PlanBasis& basis, const parallel::MeshPosition& at);

/// The ops of a step besides those of its micro-batches: updates, sums over ranks, packing, zeroing. Of a
/// step with as few micro-batches as fill the pipeline, since most of these ops are the same in number.
kernels::WorkTally tally_rest(const PlanBasis& basis, const parallel::MeshPosition& at,
                              const std::vector<MicroBatchTally>& of_micro_batch);

}  // namespace trainctl
