// The activations of feed-forward parts: a row for each says what it is to a job, to kernels and in files.
// Formulas of the functions: activation_ops.h.
#pragma once
#include <iterator>
#include <string_view>
#include <variant>

#include "runtime/base/words.h"

namespace trainctl::kernels {

/// Of one input.
enum class Activation {
  gelu,  ///< gelu_tanh
  gelu_erf,
  relu2,  ///< max(x, 0)^2
  silu
};

/// Of an input and its gate.
enum class Gate {
  swiglu,     ///< silu(gate) * up
  geglu,      ///< gelu_tanh(gate) * up
  geglu_erf,  ///< gelu_erf(gate) * up
  /// With g = min(gate, limit) and u = clamp(up, -limit, limit): (u + 1) * g * sigmoid(alpha g). Gradients are 0
  /// where a value is beyond its limit. Source: gpt-oss.
  clamped
};

/// As a job names them. The gated ones have twice as many columns in their first product.
enum class FfnActivation { gelu, gelu_erf, relu2, silu, swiglu, geglu, geglu_erf, swiglu_clamped };

struct FfnActivationRow {
  FfnActivation activation;
  std::string_view word;
  std::variant<Activation, Gate> kernel;
  std::string_view meaning;    ///< "": the word says it
  std::string_view in_config;  ///< its name in a config.json of Hugging Face; "": it has none
  constexpr bool is_gated() const { return std::holds_alternative<Gate>(kernel); }
};

inline constexpr FfnActivationRow kFfnActivations[] = {
    {FfnActivation::gelu, "gelu", Activation::gelu, "by tanh", "gelu_pytorch_tanh"},
    {FfnActivation::gelu_erf, "gelu_erf", Activation::gelu_erf, "", "gelu"},
    {FfnActivation::relu2, "relu2", Activation::relu2, "max(x, 0) squared", "relu2"},
    {FfnActivation::silu, "silu", Activation::silu, "", "silu"},
    {FfnActivation::swiglu, "swiglu", Gate::swiglu, "", "silu"},
    {FfnActivation::geglu, "geglu", Gate::geglu, "by tanh", "gelu_pytorch_tanh"},
    {FfnActivation::geglu_erf, "geglu_erf", Gate::geglu_erf, "", "gelu"},
    {FfnActivation::swiglu_clamped, "swiglu_clamped", Gate::clamped,
     "gpt-oss: (u + 1) * g * sigmoid(1.702 g), clamped at `activation_limit`", ""},
};
static_assert([] {
  for (size_t i = 0; i < std::size(kFfnActivations); ++i)
    if (size_t(kFfnActivations[i].activation) != i) return false;
  return true;
}());
constexpr const FfnActivationRow& row_of(FfnActivation activation) {
  return kFfnActivations[size_t(activation)];
}
constexpr bool is_gated(FfnActivation activation) { return row_of(activation).is_gated(); }

/// The words in the order of the values.
struct FfnActivationWords {
  std::string_view words[std::size(kFfnActivations)];
  constexpr FfnActivationWords() {
    for (const FfnActivationRow& row : kFfnActivations) words[size_t(row.activation)] = row.word;
  }
};
inline constexpr FfnActivationWords kFfnActivationWords;

}  // namespace trainctl::kernels

template <>
struct trainctl::Words<trainctl::kernels::FfnActivation> {
  static constexpr auto& list = trainctl::kernels::kFfnActivationWords.words;
};
