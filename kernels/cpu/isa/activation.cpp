#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"
#include "kernels/normal_tail.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

// 0.5 (1 + tanh(u)) = sigmoid(2u): GELU needs one exponential and loses no digits where tanh nears -1.
constexpr float kTwiceSqrt2OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
// Beyond it sigmoid(2u) is 0 or 1 to f32, and the derivative's polynomial would overflow.
constexpr float kSaturated = 9.0f;
// Beyond it the normal density is 0 to f32.
constexpr float kNoDensity = 14.5f;

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

/// exp(-x^2 / 2).
TRAINCTL_INLINE V bell(V x) { return exponential(x * x * -0.5f); }

/// The share of a normal distribution below x, given bell(x).
TRAINCTL_INLINE V share_below(V x, V bell_of_x) {
  const V t = splat(1.0f) / fma(maximum(x, -x), splat(kTailScale), splat(1.0f));
  V p = splat(kTail8);
  for (const float c : {kTail7, kTail6, kTail5, kTail4, kTail3, kTail2, kTail1, kTail0}) {
    p = fma(p, t, splat(c));
  }
  const V tail = p * t * bell_of_x;
  return select(x < V{}, tail, splat(1.0f) - tail);
}

TRAINCTL_INLINE V silu_derivative(V z, V s) { return s * fma(z, splat(1.0f) - s, splat(1.0f)); }

template <Activation kKind>
TRAINCTL_INLINE V activated(V x) {
  if constexpr (kKind == Activation::gelu) {
    return gelu(x);
  } else if constexpr (kKind == Activation::gelu_erf) {
    return x * share_below(x, bell(x));
  } else if constexpr (kKind == Activation::relu2) {
    const V positive = maximum(V{}, x);
    return positive * positive;
  } else {
    return x * sigmoid(x);
  }
}

template <Activation kKind>
TRAINCTL_INLINE V derivative(V x) {
  if constexpr (kKind == Activation::gelu) {
    return gelu_derivative(x);
  } else if constexpr (kKind == Activation::gelu_erf) {
    x = clamp(x, -kNoDensity, kNoDensity);
    const V e = bell(x);
    return fma(x * e, splat(kNormalDensity), share_below(x, e));
  } else if constexpr (kKind == Activation::relu2) {
    const V positive = maximum(V{}, x);
    return positive + positive;
  } else {
    return silu_derivative(x, sigmoid(x));
  }
}

/// The factors of a gate and their derivatives: y = act(gate) * up, unless Gate::clamped.
template <Gate kKind>
struct Gated {
  static constexpr Activation kAct = kKind == Gate::geglu ? Activation::gelu : Activation::gelu_erf;

  TRAINCTL_INLINE V value(V gate, V up) const {
    if constexpr (kKind == Gate::swiglu) {
      return gate * sigmoid(gate) * up;
    } else {
      return activated<kAct>(gate) * up;
    }
  }
  TRAINCTL_INLINE void gradients(V z, V up, V grad, V& to_gate, V& to_up) const {
    if constexpr (kKind == Gate::swiglu) {
      const V s = sigmoid(z);
      to_gate = grad * up * silu_derivative(z, s);
      to_up = grad * (z * s);
    } else {
      to_gate = grad * up * derivative<kAct>(z);
      to_up = grad * activated<kAct>(z);
    }
  }
  float limit, alpha;
};

template <>
struct Gated<Gate::clamped> {
  TRAINCTL_INLINE V limited(V gate) const { return -maximum(splat(-limit), -gate); }  // NaN stays NaN
  TRAINCTL_INLINE V value(V gate, V up) const {
    const V z = limited(gate);
    return (clamp(up, -limit, limit) + 1.0f) * (z * sigmoid(z * alpha));
  }
  TRAINCTL_INLINE void gradients(V gate, V up, V grad, V& to_gate, V& to_up) const {
    const V z = limited(gate), s = sigmoid(z * alpha);
    to_gate = grad * (clamp(up, -limit, limit) + 1.0f) * silu_derivative(z * alpha, s);
    to_gate = select(gate > splat(limit), V{}, to_gate);
    to_up = grad * (z * s);
    to_up = select(up > splat(limit), V{}, select(up < splat(-limit), V{}, to_up));
  }
  float limit, alpha;
};

template <Activation kKind>
void forward(const ActivationForward& op) {
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.x.rows; ++r) {
      const T* in = row<T>(op.x, r);
      T* out = row<T>(op.y, r);
      for_lanes(op.x.cols,
                [&](int64_t c, auto lanes) { store(out + c, activated<kKind>(load(in + c, lanes)), lanes); });
    }
  });
}

template <Activation kKind>
void backward(const ActivationBackward& op) {
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.x.rows; ++r) {
      const T *in = row<T>(op.x, r), *g = row<T>(op.dy, r);
      T* out = row<T>(op.dx, r);
      for_lanes(op.x.cols, [&](int64_t c, auto lanes) {
        store(out + c, load(g + c, lanes) * derivative<kKind>(load(in + c, lanes)), lanes);
      });
    }
  });
}

template <Gate kKind>
void forward(const GatedForward& op) {
  const Gated<kKind> gated{op.limit, op.alpha};
  with_type(op.y.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.y.rows; ++r) {
      const T *g = row<T>(op.gate, r), *u = row<T>(op.up, r);
      T* out = row<T>(op.y, r);
      for_lanes(op.y.cols, [&](int64_t c, auto lanes) {
        store(out + c, gated.value(load(g + c, lanes), load(u + c, lanes)), lanes);
      });
    }
  });
}

template <Gate kKind>
void backward(const GatedBackward& op) {
  const Gated<kKind> gated{op.limit, op.alpha};
  with_type(op.dy.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.dy.rows; ++r) {
      const T *g = row<T>(op.gate, r), *u = row<T>(op.up, r), *d = row<T>(op.dy, r);
      T *out_gate = row<T>(op.dgate, r), *out_up = row<T>(op.dup, r);
      for_lanes(op.dy.cols, [&](int64_t c, auto lanes) {
        V to_gate, to_up;
        gated.gradients(load(g + c, lanes), load(u + c, lanes), load(d + c, lanes), to_gate, to_up);
        store(out_up + c, to_up, lanes);
        store(out_gate + c, to_gate, lanes);
      });
    }
  });
}

}  // namespace

void activation_forward(const ActivationForward& op) {
  switch (op.kind) {
    case Activation::gelu: return forward<Activation::gelu>(op);
    case Activation::gelu_erf: return forward<Activation::gelu_erf>(op);
    case Activation::relu2: return forward<Activation::relu2>(op);
    case Activation::silu: return forward<Activation::silu>(op);
  }
}

void activation_backward(const ActivationBackward& op) {
  switch (op.kind) {
    case Activation::gelu: return backward<Activation::gelu>(op);
    case Activation::gelu_erf: return backward<Activation::gelu_erf>(op);
    case Activation::relu2: return backward<Activation::relu2>(op);
    case Activation::silu: return backward<Activation::silu>(op);
  }
}

void gated_forward(const GatedForward& op) {
  switch (op.kind) {
    case Gate::swiglu: return forward<Gate::swiglu>(op);
    case Gate::geglu: return forward<Gate::geglu>(op);
    case Gate::geglu_erf: return forward<Gate::geglu_erf>(op);
    case Gate::clamped: return forward<Gate::clamped>(op);
  }
}

void gated_backward(const GatedBackward& op) {
  switch (op.kind) {
    case Gate::swiglu: return backward<Gate::swiglu>(op);
    case Gate::geglu: return backward<Gate::geglu>(op);
    case Gate::geglu_erf: return backward<Gate::geglu_erf>(op);
    case Gate::clamped: return backward<Gate::clamped>(op);
  }
}

void sigmoid_gate_forward(const SigmoidGateForward& op) {
  with_type(op.y.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.y.rows; ++r) {
      const T *in = row<T>(op.x, r), *g = row<T>(op.gate, r);
      T* out = row<T>(op.y, r);
      for_lanes(op.y.cols, [&](int64_t c, auto lanes) {
        store(out + c, load(in + c, lanes) * sigmoid(load(g + c, lanes)), lanes);
      });
    }
  });
}

void sigmoid_gate_backward(const SigmoidGateBackward& op) {
  with_type(op.dx.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.dx.rows; ++r) {
      const T *in = row<T>(op.x, r), *g = row<T>(op.gate, r), *d = row<T>(op.dy, r);
      T *out = row<T>(op.dx, r), *out_gate = row<T>(op.dgate, r);
      for_lanes(op.dx.cols, [&](int64_t c, auto lanes) {
        const V s = sigmoid(load(g + c, lanes)), grad = load(d + c, lanes) * s;
        store(out_gate + c, grad * load(in + c, lanes) * (splat(1.0f) - s), lanes);
        store(out + c, grad, lanes);
      });
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
