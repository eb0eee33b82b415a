#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {
typedef double VDouble __attribute__((vector_size(64)));

struct DoublePair {
  VDouble low, high;
};

/// Adds v^2 to the sums, in double.
TRAINCTL_INLINE void add_squares(V v, DoublePair& sums) {
  struct Halves {
    float __attribute__((vector_size(32))) low, high;
  };
  const Halves h = __builtin_bit_cast(Halves, v);
  const VDouble low = __builtin_convertvector(h.low, VDouble), high = __builtin_convertvector(h.high, VDouble);
  sums.low += low * low;
  sums.high += high * high;
}
}  // namespace

void adamw(const AdamWBox& box, const AdamWStep& s) {
  const float one_less_beta1 = 1.0f - s.beta1, one_less_beta2 = 1.0f - s.beta2, decay = s.lr * box.weight_decay;
  with_type(box.param.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < box.param.rows; ++r) {
      const float* grad = box.grad + r * box.grad_stride;
      float *master = box.master + r * box.param.cols, *first = box.first_moment + r * box.param.cols,
            *second = box.second_moment + r * box.param.cols;
      T* param = row<T>(box.param, r);
      for_lanes(box.param.cols, [&](int64_t c, auto lanes) {
        const V g = load(grad + c, lanes) * s.grad_scale;
        const V m = load(first + c, lanes) * s.beta1 + g * one_less_beta1;
        const V v = load(second + c, lanes) * s.beta2 + (g * g) * one_less_beta2;
        V w = load(master + c, lanes);
        w = w - w * decay;
        w = w - (m / s.bias_correction1) * s.lr / (square_root(v / s.bias_correction2) + s.eps);
        store(first + c, m, lanes);
        store(second + c, v, lanes);
        store(master + c, w, lanes);
        store(param + c, w, lanes);
      });
    }
  });
}

double sum_squares(const Matrix& x) {
  DoublePair sums[2] = {};
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* p = row<float>(x, r);
    int side = 0;
    for_lanes(x.cols, [&](int64_t c, auto lanes) {
      add_squares(load(p + c, lanes), sums[side]);
      side ^= 1;
    });
  }
  const VDouble total = (sums[0].low + sums[1].low) + (sums[0].high + sums[1].high);
  double result = 0;
  for (int i = 0; i < 8; ++i) {
    result += total[i];
  }
  return result;
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
