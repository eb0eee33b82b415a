#include <type_traits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/normal_tail.h"

namespace trainctl::kernels::cuda {

namespace {

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), which loses nothing where tanh is near -1. With u = sqrt(2/pi) (x + 0.044715 x^3), the
// exponent to base 2 is x (kLinear + kCubic x^2). The error of fast_exp2 is 2^-22, that of its argument 2^-24 of the argument: below
// 1e-6 wherever the result is not below 1e-4 of x. __fdividef adds 2 units in the last place; the exact division would need more
// instructions than the multiprocessors can issue while memory delivers the data.
constexpr double kLog2e = 1.4426950408889634, kSqrt2OverPi = 0.7978845608028654;
constexpr float kLinear = float(-2 * kSqrt2OverPi * kLog2e), kCubic = float(-2 * kSqrt2OverPi * 0.044715 * kLog2e);

__device__ inline float sigmoid(float z) { return __fdividef(1.0f, 1.0f + fast_exp2(z * float(-kLog2e))); }

__device__ inline float gelu(float x) { return __fdividef(x, 1.0f + fast_exp2(x * fmaf(kCubic, x * x, kLinear))); }
/// With s = 1 / (1 + exp(-2u)): gelu' = s + x s (1 - s) 2 u'.
__device__ inline float gelu_derivative(float x) {
  constexpr float kSlope = float(2 * kSqrt2OverPi), kSlope3 = float(2 * kSqrt2OverPi * 3 * 0.044715);
  const float x2 = fminf(x * x, 400.0f);  // beyond it s is 0 or 1; an infinite square would give 0 * infinity
  const float s = __fdividef(1.0f, 1.0f + fast_exp2(x * fmaf(kCubic, x2, kLinear)));
  return fmaf(x * (s * (1.0f - s)), fmaf(kSlope3, x2, kSlope), s);
}

__device__ inline float bell(float x) { return fast_exp2(x * x * float(-0.5 * kLog2e)); }
/// The share of a normal distribution below x, given bell(x) = exp(-x^2 / 2).
__device__ inline float share_below(float x, float bell_of_x) {
  const float t = __fdividef(1.0f, fmaf(fabsf(x), kTailScale, 1.0f));
  float p = fmaf(kTail8, t, kTail7);
  p = fmaf(p, t, kTail6);
  p = fmaf(p, t, kTail5);
  p = fmaf(p, t, kTail4);
  p = fmaf(p, t, kTail3);
  p = fmaf(p, t, kTail2);
  p = fmaf(p, t, kTail1);
  p = fmaf(p, t, kTail0);
  const float tail = p * t * bell_of_x;
  return x < 0 ? tail : 1.0f - tail;
}

__device__ inline float silu_derivative(float z, float s) { return s * fmaf(z, 1.0f - s, 1.0f); }

template <Activation kKind>
__device__ inline float activated(float x) {
  if constexpr (kKind == Activation::gelu) {
    return gelu(x);
  } else if constexpr (kKind == Activation::gelu_erf) {
    return x * share_below(x, bell(x));
  } else if constexpr (kKind == Activation::relu2) {
    return x < 0 ? 0.0f : x * x;   // a NaN stays one
  } else {
    return x * sigmoid(x);
  }
}
template <Activation kKind>
__device__ inline float derivative(float x) {
  if constexpr (kKind == Activation::gelu) {
    return gelu_derivative(x);
  } else if constexpr (kKind == Activation::gelu_erf) {
    const float e = bell(x);
    return fmaf(x * e, kNormalDensity, share_below(x, e));
  } else if constexpr (kKind == Activation::relu2) {
    return x < 0 ? 0.0f : 2.0f * x;
  } else {
    return silu_derivative(x, sigmoid(x));
  }
}

template <typename T, Activation kKind>
struct ForwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 1, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[1];
  View<T> out[1];

  __device__ void operator()(const float (&from)[1], float (&to)[1]) const { to[0] = activated<kKind>(from[0]); }
};

template <typename T, Activation kKind>
struct BackwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[2];  ///< x, dy
  View<T> out[1];

  __device__ void operator()(const float (&from)[2], float (&to)[1]) const { to[0] = from[1] * derivative<kKind>(from[0]); }
};

/// Gate::clamped: where its values end.
struct Limits {
  float limit, alpha;

  __device__ float of_gate(float z) const { return z > limit ? limit : z; }
  __device__ bool is_beyond(float u) const { return fabsf(u) > limit; }
  __device__ float of_up(float u) const { return is_beyond(u) ? copysignf(limit, u) : u; }
};

template <typename T, Gate kKind>
struct GatedForwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[2];  ///< gate, up
  View<T> out[1];
  Limits limits;

  __device__ void operator()(const float (&from)[2], float (&to)[1]) const {
    const float z = from[0];
    if constexpr (kKind == Gate::swiglu) {
      to[0] = z * sigmoid(z) * from[1];
    } else if constexpr (kKind == Gate::clamped) {
      const float g = limits.of_gate(z);
      to[0] = (limits.of_up(from[1]) + 1.0f) * (g * sigmoid(limits.alpha * g));
    } else {
      to[0] = activated<kKind == Gate::geglu ? Activation::gelu : Activation::gelu_erf>(z) * from[1];
    }
  }
};

template <typename T, Gate kKind>
struct GatedBackwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 3, kOutputs = 2;
  static constexpr bool kMovesBits = false;
  View<const T> in[3];  ///< gate, up, dy
  View<T> out[2];       ///< dgate, dup
  Limits limits;

  __device__ void operator()(const float (&from)[3], float (&to)[2]) const {
    const float z = from[0], up = from[1], dy = from[2];
    if constexpr (kKind == Gate::swiglu) {
      const float s = sigmoid(z);
      to[0] = dy * up * silu_derivative(z, s);
      to[1] = dy * (z * s);
    } else if constexpr (kKind == Gate::clamped) {
      const float g = limits.of_gate(z), u = limits.of_up(up), s = sigmoid(limits.alpha * g);
      to[0] = z > limits.limit ? 0.0f : dy * (u + 1.0f) * silu_derivative(limits.alpha * g, s);
      to[1] = limits.is_beyond(up) ? 0.0f : dy * (g * s);
    } else {
      constexpr Activation kAct = kKind == Gate::geglu ? Activation::gelu : Activation::gelu_erf;
      to[0] = dy * up * derivative<kAct>(z);
      to[1] = dy * activated<kAct>(z);
    }
  }
};

template <typename T>
struct SigmoidGateForwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[2];  ///< x, gate
  View<T> out[1];

  __device__ void operator()(const float (&from)[2], float (&to)[1]) const { to[0] = from[0] * sigmoid(from[1]); }
};

template <typename T>
struct SigmoidGateBackwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 3, kOutputs = 2;
  static constexpr bool kMovesBits = false;
  View<const T> in[3];  ///< x, gate, dy
  View<T> out[2];       ///< dx, dgate

  __device__ void operator()(const float (&from)[3], float (&to)[2]) const {
    const float s = sigmoid(from[1]), through = from[2] * s;
    to[0] = through;
    to[1] = through * from[0] * (1.0f - s);
  }
};

/// Calls f(null pointer to T, a constant that is the kind).
template <typename F>
void with_activation(DType dtype, Activation kind, F f) {
  with_activation_type(dtype, [&](auto* type) {
    switch (kind) {
      case Activation::gelu: return f(type, std::integral_constant<Activation, Activation::gelu>{});
      case Activation::gelu_erf: return f(type, std::integral_constant<Activation, Activation::gelu_erf>{});
      case Activation::relu2: return f(type, std::integral_constant<Activation, Activation::relu2>{});
      case Activation::silu: return f(type, std::integral_constant<Activation, Activation::silu>{});
    }
  });
}
template <typename F>
void with_gate(DType dtype, Gate kind, F f) {
  with_activation_type(dtype, [&](auto* type) {
    switch (kind) {
      case Gate::swiglu: return f(type, std::integral_constant<Gate, Gate::swiglu>{});
      case Gate::geglu: return f(type, std::integral_constant<Gate, Gate::geglu>{});
      case Gate::geglu_erf: return f(type, std::integral_constant<Gate, Gate::geglu_erf>{});
      case Gate::clamped: return f(type, std::integral_constant<Gate, Gate::clamped>{});
    }
  });
}

}  // namespace

void enqueue(const Queue& queue, const ActivationForward& op) {
  with_activation(op.x.dtype, op.kind, [&](auto* type, auto kind) {
    using T = std::remove_pointer_t<decltype(type)>;
    const ForwardElement<T, decltype(kind)::value> element{{view_of<const T>(op.x)}, {view_of<T>(op.y)}};
    for_each_element(queue, op.kName, element, {op.x, op.y});
  });
}

void enqueue(const Queue& queue, const ActivationBackward& op) {
  with_activation(op.x.dtype, op.kind, [&](auto* type, auto kind) {
    using T = std::remove_pointer_t<decltype(type)>;
    const BackwardElement<T, decltype(kind)::value> element{{view_of<const T>(op.x), view_of<const T>(op.dy)},
                                                            {view_of<T>(op.dx)}};
    for_each_element(queue, op.kName, element, {op.x, op.dy, op.dx});
  });
}

void enqueue(const Queue& queue, const GatedForward& op) {
  with_gate(op.gate.dtype, op.kind, [&](auto* type, auto kind) {
    using T = std::remove_pointer_t<decltype(type)>;
    const GatedForwardElement<T, decltype(kind)::value> element{
        {view_of<const T>(op.gate), view_of<const T>(op.up)}, {view_of<T>(op.y)}, {op.limit, op.alpha}};
    for_each_element(queue, op.kName, element, {op.gate, op.up, op.y});
  });
}

void enqueue(const Queue& queue, const GatedBackward& op) {
  with_gate(op.gate.dtype, op.kind, [&](auto* type, auto kind) {
    using T = std::remove_pointer_t<decltype(type)>;
    const GatedBackwardElement<T, decltype(kind)::value> element{
        {view_of<const T>(op.gate), view_of<const T>(op.up), view_of<const T>(op.dy)},
        {view_of<T>(op.dgate), view_of<T>(op.dup)},
        {op.limit, op.alpha}};
    for_each_element(queue, op.kName, element, {op.gate, op.up, op.dy, op.dgate, op.dup});
  });
}

void enqueue(const Queue& queue, const SigmoidGateForward& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const SigmoidGateForwardElement<T> element{{view_of<const T>(op.x), view_of<const T>(op.gate)}, {view_of<T>(op.y)}};
    for_each_element(queue, op.kName, element, {op.x, op.gate, op.y});
  });
}

void enqueue(const Queue& queue, const SigmoidGateBackward& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const SigmoidGateBackwardElement<T> element{
        {view_of<const T>(op.x), view_of<const T>(op.gate), view_of<const T>(op.dy)},
        {view_of<T>(op.dx), view_of<T>(op.dgate)}};
    for_each_element(queue, op.kName, element, {op.x, op.gate, op.dy, op.dx, op.dgate});
  });
}

}  // namespace trainctl::kernels::cuda
