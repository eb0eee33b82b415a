#include "runtime/model/warm_up.h"

namespace trainctl {

void warm_up(const WarmUp& w) {
  kernels::Stream& stream = w.model.stream();
  // The last lane merges with those before it. Of its two micro-batches the first overwrites the gradients
  // and the second adds to them.
  const auto micro_batch = [&](bool first) {
    return MicroBatch{.index = 0,
                      .lane = w.lanes - w.lanes_of_micro_batch,
                      .first_of_lane = first,
                      .last_of_lane = !first,
                      .arrays = w.arrays};
  };
  // Where parts take turns in the memory for weights, each brings its own before it is computed.
  const auto pass = [&](int c, bool backward, auto compute) {
    if (!w.params.shards_weights()) return compute(parallel::kAllParts);
    for (int i = 0; i < w.model.parts(c); ++i) {
      const int part = backward ? w.model.parts(c) - 1 - i : i;
      w.params.gather(w.model.part(c, part).begin, w.model.part(c, part).end);
      w.model.take_weights(c, part);
      compute(part);
      w.model.release_weights(c, part);
    }
  };
  w.params.publish();
  for (const bool first : {true, false}) {
    const MicroBatch mb = micro_batch(first);
    for (int virtual_stage = 0; virtual_stage < w.virtual_stages; ++virtual_stage) {
      for (int part = 0; first && !w.params.shards_weights() && part < w.model.parts(virtual_stage); ++part)
        w.model.take_weights(virtual_stage, part);
      pass(virtual_stage, false,
           [&](int part) { w.model.forward(virtual_stage, 0, mb, true, w.losses, part); });
    }
    for (int virtual_stage = w.virtual_stages - 1; virtual_stage >= 0; --virtual_stage) {
      if (!w.split_backward) {
        pass(virtual_stage, true, [&](int part) { w.model.backward(virtual_stage, 0, mb, part); });
        continue;
      }
      pass(virtual_stage, true, [&](int part) { w.model.backward_input(virtual_stage, 0, mb, part); });
      pass(virtual_stage, true, [&](int part) { w.model.backward_weight(virtual_stage, 0, mb, part); });
    }
  }
  for (int i = 0; i < w.reductions; ++i) w.params.reduce(0, w.params.use_count());
  w.params.finish_reduction();
  ExactSum squares;
  w.params.add_gradient_squares(squares);
  w.params.step({});   // with a learning rate of zero
  if (!w.params.shards_weights()) w.params.gather(0, w.params.use_count());
  w.params.finish_gathers();
  w.model.weights_changed();
  w.params.with_state(
      parallel::StateAccess::write, [&](std::span<const parallel::ShardedParams::StateChunk> all) {
        for (const auto& chunk : all)
          for (size_t i = 0; i < chunk.rows.size(); ++i)
            if (!chunk.rows[i].in_place)
              w.backend.run(stream, kernels::FillZero{.data = chunk.states[i],
                                                      .size = size_t(chunk.box_of(chunk.rows[i]).count()) *
                                                              size_of(chunk.rows[i].dtype)});
      });
  stream.synchronize();
}

}  // namespace trainctl
