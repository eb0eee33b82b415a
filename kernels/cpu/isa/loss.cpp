#include <cmath>

#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

TRAINCTL_INLINE V beyond(V v, Full, float) { return v; }
TRAINCTL_INLINE V beyond(V v, Tail tail, float fill) {
  return select(first_lanes(tail.count), v, splat(fill));
}

/// (max, sum of exp(x - max)) of a row. The second pass finds the row in the cache.
template <typename T>
void row_stats(const T* x, int64_t n, float* stats) {
  V best = splat(-INFINITY);
  for_lanes(n, [&](int64_t c, auto lanes) { best = larger(best, beyond(load(x + c, lanes), lanes, -INFINITY)); });
  const float max = lane_max(best);
  V total[2] = {};
  for_lanes_in_turns(n, [&](int64_t c, int turn, auto lanes) __attribute__((always_inline)) {
    total[turn] += beyond(exponential(load(x + c, lanes) - max), lanes, 0.0f);
  });
  stats[0] = max;
  stats[1] = lane_sum(total[0] + total[1]);
}

template <typename T>
void row_gradient(T* x, int64_t n, int64_t target, float lse, float scale) {
  const bool here = target >= 0 && target < n;
  const V at_target = here ? load(x + target, Tail{1}) : V{};
  for_lanes(n, [&](int64_t c, auto lanes) { store(x + c, exponential(load(x + c, lanes) - lse) * scale, lanes); });
  if (here) {
    store(x + target, (exponential(at_target - lse) - 1.0f) * scale, Tail{1});
  }
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStats& op) {
  with_type(op.logits.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t m = 0; m < op.logits.rows; ++m) {
      const T* x = row<T>(op.logits, m);
      const int64_t target = op.targets[m] - op.vocab_begin;
      row_stats(x, op.logits.cols, op.stats + 3 * m);
      op.stats[3 * m + 2] = target >= 0 && target < op.logits.cols ? float(x[target]) : 0.0f;
    }
  });
}

void cross_entropy_backward(const CrossEntropyBackward& op) {
  with_type(op.logits.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t m = 0; m < op.logits.rows; ++m) {
      row_gradient(row<T>(op.logits, m), op.logits.cols, op.targets[m] - op.vocab_begin, op.lse[m], op.scale);
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
