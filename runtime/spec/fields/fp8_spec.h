// precision.fp8: which products of layers are made of numbers of 8 or 4 bits, and with which scales.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/words.h"

namespace trainctl {

enum class Fp8Recipe : uint8_t { none, block, tensor, mxfp8, nvfp4 };
enum class Fp8Gradients : uint8_t { e4m3, e5m2 };
/// What stays in precision.compute: layers, or products of all layers. tail: a share of the layers, the
/// last ones.
enum class Fp8Kept : uint8_t { first, last, tail, qkv, out, up, down };
template <>
struct Words<Fp8Recipe> {
  static constexpr std::string_view list[] = {"none", "block", "tensor", "mxfp8", "nvfp4"};
};
template <>
struct Words<Fp8Gradients> {
  static constexpr std::string_view list[] = {"e4m3", "e5m2"};
};
template <>
struct Words<Fp8Kept> {
  static constexpr std::string_view list[] = {"first", "last", "tail", "qkv", "out", "up", "down"};
};

/// Which values of an operand have one scale.
struct Fp8Scaling {
  int64_t group = 0;  ///< so many along the sum of a product, and in a weight as many across; 0: all of them
  /// A weight's groups are lines, too: neighbours of a row for y = x W^T, of a column for dx = dy W. So each
  /// of the two sees other numbers.
  bool weights_in_lines = false;
  /// Numbers of 4 bits, and a second scale of the whole operand (kernels/fp4.h).
  bool four_bits = false;
  /// What a product sees of a weight is made for it from the compute copy, which stays as it is. Else the
  /// copy becomes that: where products see the same, and of what was rounded before make the same again.
  bool keeps_weights() const { return weights_in_lines || four_bits; }
};
/// In the order of Fp8Recipe.
inline constexpr Fp8Scaling kFp8Scalings[] = {
    {}, {.group = 128}, {}, {.group = 32, .weights_in_lines = true}, {.group = 16, .four_bits = true}};
constexpr const Fp8Scaling& scaling_of(Fp8Recipe recipe) { return kFp8Scalings[size_t(recipe)]; }

struct Fp8Spec {
  Fp8Recipe recipe = Fp8Recipe::none;
  Fp8Gradients gradients = Fp8Gradients::e4m3;
  std::vector<Fp8Kept> keep;
  bool exists() const { return recipe != Fp8Recipe::none; }
  bool keeps(Fp8Kept what) const { return std::ranges::find(keep, what) != keep.end(); }
  /// Layers of `tail`: 15 %, one at least.
  static constexpr int64_t tail_of(int64_t layers) { return (layers * 15 + 99) / 100; }
  bool keeps_layer(int64_t layer, int64_t layers) const {
    return (layer == 0 && keeps(Fp8Kept::first)) || (layer + 1 == layers && keeps(Fp8Kept::last)) ||
           (layer >= layers - tail_of(layers) && keeps(Fp8Kept::tail));
  }
};

}  // namespace trainctl
