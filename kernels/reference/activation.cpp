#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

namespace {
const double kSqrt2OverPi = std::sqrt(2.0 / 3.14159265358979323846);
const double kSqrtHalf = std::sqrt(0.5);
constexpr double kCubic = 0.044715;

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

/// A function and its derivative at one place.
struct Slope {
  double value, slope;
};

Slope gelu_at(double v) {
  const double t = std::tanh(kSqrt2OverPi * (v + kCubic * v * v * v));
  const double inner = kSqrt2OverPi * (1.0 + 3.0 * kCubic * v * v);
  return {0.5 * v * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * inner};
}
Slope gelu_erf_at(double v) {
  const double below = 0.5 * std::erfc(-v * kSqrtHalf);  // the share of a normal distribution below v
  return {v * below, below + 0.5 * kSqrt2OverPi * v * std::exp(-0.5 * v * v)};
}
Slope silu_at(double v) {
  const double s = sigmoid(v);
  return {v * s, s * (1.0 + v * (1.0 - s))};
}

Slope at(Activation kind, double v) {
  switch (kind) {
    case Activation::gelu: return gelu_at(v);
    case Activation::gelu_erf: return gelu_erf_at(v);
    case Activation::relu2: return v < 0 ? Slope{0, 0} : Slope{v * v, 2 * v};
    case Activation::silu: break;
  }
  return silu_at(v);
}

/// A gate's y = gate.value * up.value, with the derivatives of the factors.
struct Factors {
  Slope gate, up;
};
Factors factors_of(const auto& op, double g, double u) {
  switch (op.kind) {
    case Gate::swiglu: return {silu_at(g), {u, 1}};
    case Gate::geglu: return {gelu_at(g), {u, 1}};
    case Gate::geglu_erf: return {gelu_erf_at(g), {u, 1}};
    case Gate::clamped: break;
  }
  const double limit = op.limit, alpha = op.alpha, z = g > limit ? limit : g, s = sigmoid(alpha * z);
  const bool beyond = u > limit || u < -limit;
  return {{z * s, g > limit ? 0 : s * (1.0 + alpha * z * (1.0 - s))},
          {(beyond ? std::copysign(limit, u) : u) + 1.0, beyond ? 0.0 : 1.0}};
}

template <typename Body>
void each_element(const Matrix& m, Body body) {
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      body(r, c);
    }
  }
}
}  // namespace

void compute(const ActivationForward& op) {
  each_element(op.x, [&](int64_t r, int64_t c) { put(op.y, r, c, at(op.kind, get(op.x, r, c)).value); });
}

void compute(const ActivationBackward& op) {
  each_element(op.x, [&](int64_t r, int64_t c) {
    put(op.dx, r, c, get(op.dy, r, c) * at(op.kind, get(op.x, r, c)).slope);
  });
}

void compute(const GatedForward& op) {
  each_element(op.y, [&](int64_t r, int64_t c) {
    const Factors f = factors_of(op, get(op.gate, r, c), get(op.up, r, c));
    put(op.y, r, c, f.gate.value * f.up.value);
  });
}

void compute(const GatedBackward& op) {
  each_element(op.dy, [&](int64_t r, int64_t c) {
    const Factors f = factors_of(op, get(op.gate, r, c), get(op.up, r, c));
    const double d = get(op.dy, r, c);
    put(op.dgate, r, c, d * f.up.value * f.gate.slope);
    put(op.dup, r, c, d * f.gate.value * f.up.slope);
  });
}

void compute(const SigmoidGateForward& op) {
  each_element(op.y,
               [&](int64_t r, int64_t c) { put(op.y, r, c, get(op.x, r, c) * sigmoid(get(op.gate, r, c))); });
}

void compute(const SigmoidGateBackward& op) {
  each_element(op.dx, [&](int64_t r, int64_t c) {
    const double s = sigmoid(get(op.gate, r, c)), x = get(op.x, r, c), d = get(op.dy, r, c);
    put(op.dx, r, c, d * s);
    put(op.dgate, r, c, d * x * s * (1.0 - s));
  });
}

}  // namespace trainctl::kernels::reference
