// The ops of products in FP8: what such a product sees of its operands (fp8.h). The ops of kernels/ops.h for
// products then multiply that. The rules and what every op has: kernels/ops.h.
#pragma once
#include "kernels/fp8.h"
#include "kernels/op_arguments.h"

namespace trainctl::kernels {

/// Which values share a scale.
///   rows      `group` neighbours of a row: for sums over columns
///   columns   as many of a column: for sums over rows
///   blocks    as many rows by as many columns
///   whole     all of them
/// The last group of a row or column may be shorter.
enum class Fp8Groups : uint8_t { rows, columns, blocks, whole };

/// y = s * fp8(x / s), with the scale s = 2^fp8_scale(the largest finite |x| of the group) of each group.
/// What is not finite becomes NaN. The rows of an expert are grouped apart from others: offsets i32 [1, E + 1] of
/// SortByExpert, or empty.   x, y [M, C] of one dtype; y may be x
struct Quantize {
  static constexpr const char* kName = "quantize";
  Matrix x, y;
  Fp8 format = Fp8::e4m3;
  Fp8Groups groups = Fp8Groups::rows;
  Matrix offsets = {};
  int64_t group = kFp8Group;
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, y}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(y), each(offsets); }
};

/// The same of a weight: `parts` matrices one above another, in e4m3. `to` has w's dtype and shape; empty: in
/// place, and then to do it twice is to do it once.
struct QuantizeWeight {
  static constexpr const char* kName = "quantize_weight";
  Matrix w;
  Fp8Groups groups = Fp8Groups::blocks;
  int64_t parts = 1;
  Matrix to = {};
  int64_t group = kFp8Group;
  const Matrix& result() const { return to ? to : w; }
  OpShape cost_shape() const { return elements(kName, w); }
  double bytes() const { return bytes_of({w, w}); }
  void check() const;
  void arguments(auto&& each) { each(w), each(to); }
};

}  // namespace trainctl::kernels
