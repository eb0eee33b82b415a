#include <cmath>

#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

float group_rstd(const auto& op, int64_t i) {
  return 1.0f / std::sqrt(op.sums[i] / float(op.count) + op.eps);
}

/// Calls body(row, first column, index of the group's sum) for each group of each row of x.
template <typename Body>
TRAINCTL_INLINE void each_group(const Matrix& x, int64_t group, Body body) {
  int64_t i = 0;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; c += group) {
      body(r, c, i++);
    }
  }
}

}  // namespace

void group_norm_sums(const GroupNormSums& op) {
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    each_group(op.x, op.group, [&](int64_t r, int64_t first, int64_t i) {
      const T* x = row<T>(op.x, r) + first;
      op.sums[i] = row_sum(op.group, [&](int64_t c, auto lanes) {
        const V v = load(x + c, lanes);
        return v * v;
      });
    });
  });
}

void group_norm_apply(const GroupNormApply& op) {
  const float* const weight = op.weight.as<float>();
  const float offset = exact_offset(op.weight_offset);
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    each_group(op.x, op.group, [&](int64_t r, int64_t first, int64_t i) {
      const T* x = row<T>(op.x, r) + first;
      T* y = row<T>(op.y, r) + first;
      const float rstd = group_rstd(op, i);
      for_lanes(op.group, [&](int64_t c, auto lanes) {
        store(y + c, load(x + c, lanes) * rstd * (load(weight + c, lanes) + offset), lanes);
      });
    });
  });
}

void group_norm_dots(const GroupNormDots& op) {
  const float* const weight = op.weight.as<float>();
  const float offset = exact_offset(op.weight_offset);
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    each_group(op.x, op.group, [&](int64_t r, int64_t first, int64_t i) {
      const T *x = row<T>(op.x, r) + first, *dy = row<T>(op.dy, r) + first;
      op.dots[i] = row_sum(op.group, [&](int64_t c, auto lanes) {
        return load(dy + c, lanes) * (load(weight + c, lanes) + offset) * load(x + c, lanes);
      });
    });
  });
}

void group_norm_backward(const GroupNormBackward& op) {
  const float* const weight = op.weight.as<float>();
  const float offset = exact_offset(op.weight_offset);
  float* const dweight = op.dweight.as<float>();
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    each_group(op.x, op.group, [&](int64_t r, int64_t first, int64_t i) {
      const T *x = row<T>(op.x, r) + first, *dy = row<T>(op.dy, r) + first;
      T* dx = row<T>(op.dx, r) + first;
      const float rstd = group_rstd(op, i), of_x = rstd * rstd * rstd * op.dots[i] / float(op.count);
      for_lanes(op.group, [&](int64_t c, auto lanes) {
        const V d = load(dy + c, lanes), v = load(x + c, lanes), xhat = v * rstd;
        store(dweight + c, i == 0 ? d * xhat : fma(d, xhat, load(dweight + c, lanes)), lanes);
        store(dx + c, d * (load(weight + c, lanes) + offset) * rstd - v * of_x, lanes);
      });
    });
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
