#include "runtime/model/flops.h"

#include "kernels/tally.h"
#include "parallel/tally.h"
#include "runtime/model/stage_model.h"

namespace trainctl {

FlopsPerToken flops_per_token(const ModelSpec& model, int64_t seq_len) {
  JobSpec job;   // one rank, one micro-batch of one sequence
  job.model = model;
  job.data.seq_len = seq_len;
  job.batch = {.global_sequences = 1, .micro_sequences = 1};
  const ParamTable table = parameter_table(model, OptimizerSpec{});
  const StageUses uses = stage_uses(table, job, {});
  kernels::WorkTally work;
  parallel::TrafficTally traffic;
  const auto backend = kernels::make_tally_backend(work);
  const auto stream = backend->create_stream();
  const auto alone = parallel::make_tally_communicator(parallel::TrafficGroup::other, 0, 1, traffic);
  parallel::TensorParallel tp(*alone, *backend, *stream, false);
  constexpr double kWholeMib = 1e9;   // parameters need not be cut for this
  parallel::ShardedParams params(uses.uses, chunk_grids(table, kWholeMib).grids, sharding_options(job, {}),
                                 *alone, *alone, nullptr, *backend, *stream);
  StageModel stage(job, uses, {.slots = {1}}, params, tp, *backend, *stream);
  for (int part = 0; part < stage.parts(0); ++part) stage.take_weights(0, part);
  double loss = 0;
  stage.forward(0, 0, {}, true, &loss);
  stage.backward(0, 0, {});
  const double causal = work.flops() / double(seq_len);
  return {causal + work.attention_flops() / double(seq_len), causal};
}

}  // namespace trainctl
