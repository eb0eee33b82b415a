#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

typedef double DoubleRegister __attribute__((vector_size(kRegisterBytes)));

/// Sixteen sums in double: lane i is in `low` or `high` of its register.
struct Sums {
  Lanes<DoubleRegister> low, high;
};

constexpr int kHalf = kRegisterLanes / 2;
typedef float HalfOfRegister __attribute__((vector_size(kRegisterBytes / 2)));

/// Adds v^2 to the sums, in double.
TRAINCTL_INLINE void add_squares(V v, Sums& sums) {
  const auto widened = [&](int i, int half) {
    HalfOfRegister f;
    std::memcpy(&f, reinterpret_cast<const char*>(&v.part[i]) + half * int(sizeof f), sizeof f);
    return __builtin_convertvector(f, DoubleRegister);
  };
  const auto square = [](DoubleRegister d) { return d * d; };
  sums.low = sums.low + each_register([&](int i) { return square(widened(i, 0)); });
  sums.high = sums.high + each_register([&](int i) { return square(widened(i, 1)); });
}
}  // namespace

void adamw(const UpdateBox& box, const AdamWStep& s) {
  const float one_less_beta1 = 1.0f - s.beta1, one_less_beta2 = 1.0f - s.beta2;
  const float lr = s.lr * box.lr_scale, decay = lr * box.weight_decay;
  with_type(box.param.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < box.param.rows; ++r) {
      const float* grad = box.grad + r * box.grad_stride;
      float *master = box.master + r * box.param.cols,
            *first = static_cast<float*>(box.first_moment) + r * box.param.cols,
            *second = static_cast<float*>(box.second_moment) + r * box.param.cols;
      T* param = row<T>(box.param, r);
      for_lanes(box.param.cols, [&](int64_t c, auto lanes) {
        const V g = load(grad + c, lanes) * s.grad_scale;
        const V m = load(first + c, lanes) * s.beta1 + g * one_less_beta1;
        const V v = load(second + c, lanes) * s.beta2 + (g * g) * one_less_beta2;
        V w = load(master + c, lanes);
        w = w - w * decay;
        w = w - (m / s.bias_correction1) * lr / (square_root(v / s.bias_correction2) + s.eps);
        store(first + c, m, lanes);
        store(second + c, v, lanes);
        store(master + c, w, lanes);
        store(param + c, w, lanes);
      });
    }
  });
}

void lion(const UpdateBox& box, const LionStep& s) {
  const float one_less_beta1 = 1.0f - s.beta1, one_less_beta2 = 1.0f - s.beta2;
  const float lr = s.lr * box.lr_scale, decay = lr * box.weight_decay;
  const V zero = splat(0.0f), one = splat(1.0f);
  with_type(box.param.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < box.param.rows; ++r) {
      const float* grad = box.grad + r * box.grad_stride;
      float *master = box.master + r * box.param.cols,
            *moment = static_cast<float*>(box.first_moment) + r * box.param.cols;
      T* param = row<T>(box.param, r);
      for_lanes(box.param.cols, [&](int64_t c, auto lanes) {
        const V g = load(grad + c, lanes) * s.grad_scale, m = load(moment + c, lanes);
        const V direction = m * s.beta1 + g * one_less_beta1;
        const V u = select(direction > zero, one, select(direction < zero, -one, zero));
        V w = load(master + c, lanes);
        w = w - w * decay;
        w = w - u * lr;
        store(moment + c, m * s.beta2 + g * one_less_beta2, lanes);
        store(master + c, w, lanes);
        store(param + c, w, lanes);
      });
    }
  });
}

void sgd(const UpdateBox& box, const SgdStep& s) {
  const float lr = s.lr * box.lr_scale, decay = lr * box.weight_decay;
  with_type(box.param.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < box.param.rows; ++r) {
      const float* grad = box.grad + r * box.grad_stride;
      float *master = box.master + r * box.param.cols,
            *moment = static_cast<float*>(box.first_moment) + r * box.param.cols;
      T* param = row<T>(box.param, r);
      for_lanes(box.param.cols, [&](int64_t c, auto lanes) {
        const V m = load(moment + c, lanes) * s.momentum + load(grad + c, lanes) * s.grad_scale;
        V w = load(master + c, lanes);
        w = w - w * decay;
        w = w - m * lr;
        store(moment + c, m, lanes);
        store(master + c, w, lanes);
        store(param + c, w, lanes);
      });
    }
  });
}

double sum_squares(const Matrix& x) {
  Sums sums[2] = {};
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* p = row<float>(x, r);
    for_lanes_in_turns(x.cols, [&](int64_t c, int turn, auto lanes) __attribute__((always_inline)) {
      add_squares(load(p + c, lanes), sums[turn]);
    });
  }
  double lanes[kLanes];
  const Lanes<DoubleRegister> low = sums[0].low + sums[1].low, high = sums[0].high + sums[1].high;
  for (int i = 0; i < kRegisters; ++i) {
    std::memcpy(lanes + i * kRegisterLanes, &low.part[i], sizeof low.part[i]);
    std::memcpy(lanes + i * kRegisterLanes + kHalf, &high.part[i], sizeof high.part[i]);
  }
  double result = 0;
  for (int i = 0; i < kLanes / 2; ++i) {
    result += lanes[i] + lanes[i + kLanes / 2];
  }
  return result;
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
