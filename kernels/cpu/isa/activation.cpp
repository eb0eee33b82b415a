#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

// 0.5 (1 + tanh(u)) = sigmoid(2u): GELU needs one exponential and loses no digits where tanh nears -1.
constexpr float kTwiceSqrt2OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
// Beyond it sigmoid(2u) is 0 or 1 to f32, and the derivative's polynomial would overflow.
constexpr float kSaturated = 9.0f;

TRAINCTL_INLINE V sigmoid(V z) { return splat(1.0f) / (exponential(-z) + 1.0f); }

TRAINCTL_INLINE V gelu_argument(V x) {
  return x * fma(x * x, splat(kTwiceSqrt2OverPi * kCubic), splat(kTwiceSqrt2OverPi));
}

TRAINCTL_INLINE V gelu(V x) { return x / (exponential(-gelu_argument(x)) + 1.0f); }

TRAINCTL_INLINE V gelu_derivative(V x) {
  x = clamp(x, -kSaturated, kSaturated);
  const V e = exponential(-gelu_argument(x));
  const V s = splat(1.0f) / (e + 1.0f);
  const V slope = fma(x * x, splat(3.0f * kTwiceSqrt2OverPi * kCubic), splat(kTwiceSqrt2OverPi));
  return fma(x * slope, s * (e * s), s);  // e * s = 1 - s without cancellation
}

}  // namespace

void gelu_forward(const GeluForward& op) {
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.x.rows; ++r) {
      const T* in = row<T>(op.x, r);
      T* out = row<T>(op.y, r);
      for_lanes(op.x.cols, [&](int64_t c, auto lanes) { store(out + c, gelu(load(in + c, lanes)), lanes); });
    }
  });
}

void gelu_backward(const GeluBackward& op) {
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.x.rows; ++r) {
      const T *in = row<T>(op.x, r), *g = row<T>(op.dy, r);
      T* out = row<T>(op.dx, r);
      for_lanes(op.x.cols, [&](int64_t c, auto lanes) {
        store(out + c, load(g + c, lanes) * gelu_derivative(load(in + c, lanes)), lanes);
      });
    }
  });
}

void swiglu_forward(const SwigluForward& op) {
  with_type(op.y.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.y.rows; ++r) {
      const T *g = row<T>(op.gate, r), *u = row<T>(op.up, r);
      T* out = row<T>(op.y, r);
      for_lanes(op.y.cols, [&](int64_t c, auto lanes) {
        const V z = load(g + c, lanes);
        store(out + c, z * sigmoid(z) * load(u + c, lanes), lanes);
      });
    }
  });
}

void swiglu_backward(const SwigluBackward& op) {
  with_type(op.dy.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.dy.rows; ++r) {
      const T *g = row<T>(op.gate, r), *u = row<T>(op.up, r), *d = row<T>(op.dy, r);
      T *out_gate = row<T>(op.dgate, r), *out_up = row<T>(op.dup, r);
      for_lanes(op.dy.cols, [&](int64_t c, auto lanes) {
        const V z = load(g + c, lanes), grad = load(d + c, lanes), s = sigmoid(z);
        const V slope = s * fma(z, splat(1.0f) - s, splat(1.0f));
        const V to_gate = grad * load(u + c, lanes) * slope;
        store(out_up + c, grad * (z * s), lanes);
        store(out_gate + c, to_gate, lanes);
      });
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
