#include <cmath>

#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

TRAINCTL_INLINE V beyond(V v, Full, float) { return v; }
TRAINCTL_INLINE V beyond(V v, Tail tail, float fill) {
  return select(first_lanes(tail.count), v, splat(fill));
}

struct PlainLogits {
  TRAINCTL_INLINE V operator()(V logit) const { return logit; }
};
/// LogitForm on lanes.
struct FormedLogits {
  TRAINCTL_INLINE explicit FormedLogits(const LogitForm& form)
      : scale(form.scale), cap(form.cap), into(form.scale / form.cap) {}
  TRAINCTL_INLINE V operator()(V logit) const {
    return cap > 0 ? hyperbolic_tangent(logit * into) * cap : logit * scale;
  }
  /// The derivative at a logit whose form is `value`.
  TRAINCTL_INLINE V slope(V value) const {
    if (!(cap > 0)) return splat(scale);
    const V t = value / cap;
    return fma(-t, t, splat(1.0f)) * scale;
  }
  float scale, cap, into;
};

/// (max, sum of exp(x - max)) of a row of formed logits. The second pass finds the row in the cache.
template <typename T, typename Form>
void row_stats(const T* x, int64_t n, Form form, float* stats) {
  V best = splat(-INFINITY);
  for_lanes(n, [&](int64_t c, auto lanes) {
    best = larger(best, beyond(form(load(x + c, lanes)), lanes, -INFINITY));
  });
  const float max = lane_max(best);
  V total[2] = {};
  for_lanes_in_turns(
      n, [&](int64_t c, int turn, auto lanes) __attribute__((always_inline)) {
        total[turn] += beyond(exponential(form(load(x + c, lanes)) - max), lanes, 0.0f);
      });
  stats[0] = max;
  stats[1] = lane_sum(total[0] + total[1]);
}

template <typename T, typename Form>
float formed_at(const T* x, Form form) {
  float lanes[kLanes];
  store(lanes, form(load(x, Tail{1})), Full{});
  return lanes[0];
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

/// The same with a form, and p counted `of_p` times.
template <typename T>
void formed_row_gradient(T* x, int64_t n, int64_t target, float lse, float scale, FormedLogits form,
                         float of_p) {
  const bool here = target >= 0 && target < n;
  const auto gradient = [&](V logit, float of_target) __attribute__((always_inline)) {
    const V value = form(logit);
    return (exponential(value - lse) * of_p - of_target) * scale * form.slope(value);
  };
  const V at_target = here ? load(x + target, Tail{1}) : V{};
  for_lanes(n, [&](int64_t c, auto lanes) { store(x + c, gradient(load(x + c, lanes), 0.0f), lanes); });
  if (here) {
    store(x + target, gradient(at_target, 1.0f), Tail{1});
  }
}

}  // namespace

void form_logits(const FormLogits& op) {
  const FormedLogits form(op.form);
  with_type(op.logits.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t m = 0; m < op.logits.rows; ++m) {
      T* x = row<T>(op.logits, m);
      for_lanes(op.logits.cols,
                [&](int64_t c, auto lanes) { store(x + c, form(load(x + c, lanes)), lanes); });
    }
  });
}

void cross_entropy_stats(const CrossEntropyStats& op) {
  const FormedLogits form(op.form);
  with_type(op.logits.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t m = 0; m < op.logits.rows; ++m) {
      const T* x = row<T>(op.logits, m);
      const int64_t target = op.targets[m] - op.vocab_begin, n = op.logits.cols;
      const bool here = op.targets[m] >= 0 && target >= 0 && target < n;
      float* const stats = op.stats + 3 * m;
      if (op.form.is_plain()) {
        row_stats(x, n, PlainLogits{}, stats);
        stats[2] = here ? float(x[target]) : 0.0f;
      } else {
        row_stats(x, n, form, stats);
        stats[2] = here ? formed_at(x + target, form) : 0.0f;
      }
    }
  });
}

void cross_entropy_backward(const CrossEntropyBackward& op) {
  const FormedLogits form(op.form);
  with_type(op.logits.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t m = 0; m < op.logits.rows; ++m) {
      T* x = row<T>(op.logits, m);
      const int64_t target = op.targets[m] - op.vocab_begin, n = op.logits.cols;
      const float lse = op.lse[m], scale = op.weights != nullptr ? op.scale * op.weights[m] : op.scale;
      if (op.targets[m] < 0) {
        std::memset(static_cast<void*>(x), 0, size_t(n) * sizeof(T));
      } else if (op.form.is_plain() && op.z_loss == 0) {
        row_gradient(x, n, target, lse, scale);
      } else {
        formed_row_gradient(x, n, target, lse, scale, form, 1.0f + 2.0f * op.z_loss * lse);
      }
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
