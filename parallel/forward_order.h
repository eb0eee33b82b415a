// The order in which the stages of a pipeline compute forward passes without a backward behind them, as an
// evaluation does. Pure.
//
// In units of one virtual stage's forward, each micro-batch goes on by one virtual stage a unit, and every
// stage computes one in each unit: none waits but at the begin and the end, and at most `stages` micro-batches
// are under way at once. What a stage receives it computes in the next unit, so that one buffer for what is
// being read and one for what comes are enough for each virtual stage.
#pragma once
#include <cstdint>
#include <vector>

#include "parallel/virtual_stages.h"

namespace trainctl::parallel {

/// The forward of a micro-batch in one virtual stage of a stage.
struct ForwardPass {
  int virtual_stage = 0;  ///< local virtual stage
  int micro_batch = 0;
  bool operator==(const ForwardPass&) const = default;
};

/// The unit in which a micro-batch is in (global) virtual stage `c`.
int64_t forward_unit(const VirtualStages& of, int c, int micro_batch);

/// The passes of `stage` of so many micro-batches, in the order of their units, which are all different.
std::vector<ForwardPass> forward_order(const VirtualStages& of, int stage, int micro_batches);

}  // namespace trainctl::parallel
