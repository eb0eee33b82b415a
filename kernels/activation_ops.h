// The ops of activations. ops.h has the letters and the rules of every op.
// gelu_tanh(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), gelu_erf(x) = 0.5 x (1 + erf(x / sqrt(2))),
// silu(x) = x sigmoid(x), sigmoid(x) = 1 / (1 + exp(-x)).
#pragma once
#include "kernels/activation_kinds.h"
#include "kernels/op_arguments.h"

namespace trainctl::kernels {

/// y = activation(x)
struct ActivationForward {
  static constexpr const char* kName = "activation_forward";
  Activation kind = Activation::gelu;
  Matrix x, y;
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, y}); }
  void check() const { check_same({x, y}); }
  void arguments(auto&& each) { each(x), each(y); }
};

/// dx = dy * activation'(x); dx may be dy
struct ActivationBackward {
  static constexpr const char* kName = "activation_backward";
  Activation kind = Activation::gelu;
  Matrix x, dy, dx;
  OpShape cost_shape() const { return elements(kName, dx); }
  double bytes() const { return bytes_of({x, dy, dx}); }
  void check() const { check_same({x, dy, dx}); }
  void arguments(auto&& each) { each(x), each(dy), each(dx); }
};

/// y = act(gate) * up, as `kind` says; gate and up may be columns of one matrix
struct GatedForward {
  static constexpr const char* kName = "gated_forward";
  Gate kind = Gate::swiglu;
  Matrix gate, up, y;
  float limit = 0, alpha = 0;  ///< of Gate::clamped
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({gate, up, y}); }
  void check() const { check_same({gate, up, y}), check_gate(kind == Gate::clamped, limit); }
  void arguments(auto&& each) { each(gate), each(up), each(y); }
};

/// dgate = dy * up * act'(gate), dup = dy * act(gate); likewise of Gate::clamped
struct GatedBackward {
  static constexpr const char* kName = "gated_backward";
  Gate kind = Gate::swiglu;
  Matrix gate, up, dy, dgate, dup;
  float limit = 0, alpha = 0;  ///< of Gate::clamped
  OpShape cost_shape() const { return elements(kName, dy); }
  double bytes() const { return bytes_of({gate, up, dy, dgate, dup}); }
  void check() const { check_same({gate, up, dy, dgate, dup}), check_gate(kind == Gate::clamped, limit); }
  void arguments(auto&& each) { each(gate), each(up), each(dy), each(dgate), each(dup); }
};

/// y = x * sigmoid(gate); y may be x
struct SigmoidGateForward {
  static constexpr const char* kName = "sigmoid_gate_forward";
  Matrix x, gate, y;
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, gate, y}); }
  void check() const { check_same({x, gate, y}); }
  void arguments(auto&& each) { each(x), each(gate), each(y); }
};

/// dx = dy * sigmoid(gate), dgate = dy * x * sigmoid'(gate); dx may be dy
struct SigmoidGateBackward {
  static constexpr const char* kName = "sigmoid_gate_backward";
  Matrix x, gate, dy, dx, dgate;
  OpShape cost_shape() const { return elements(kName, dx); }
  double bytes() const { return bytes_of({x, gate, dy, dx, dgate}); }
  void check() const { check_same({x, gate, dy, dx, dgate}); }
  void arguments(auto&& each) { each(x), each(gate), each(dy), each(dx), each(dgate); }
};

}  // namespace trainctl::kernels
