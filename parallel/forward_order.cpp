#include "parallel/forward_order.h"

#include <algorithm>

namespace trainctl::parallel {

int64_t forward_unit(const VirtualStages& of, int c, int micro_batch) {
  // In a V a stage has virtual stages p and 2 stages - 1 - p, one odd and one even: a micro-batch begins in
  // every second unit, between the units in which others are on their way back.
  if (of.v_shaped) return 2 * int64_t(micro_batch) + c;
  // Groups of as many micro-batches as stages go through all virtual stages, one group after another.
  return int64_t(micro_batch / of.stages) * of.count() + micro_batch % of.stages + c;
}

std::vector<ForwardPass> forward_order(const VirtualStages& of, int stage, int micro_batches) {
  std::vector<ForwardPass> passes;
  for (int local = 0; local < of.each; ++local)
    for (int i = 0; i < micro_batches; ++i) passes.push_back({local, i});
  const auto unit = [&](const ForwardPass& pass) {
    return forward_unit(of, of.global_of(stage, pass.virtual_stage), pass.micro_batch);
  };
  std::sort(passes.begin(), passes.end(),
            [&](const ForwardPass& a, const ForwardPass& b) { return unit(a) < unit(b); });
  return passes;
}

}  // namespace trainctl::parallel
