// The op of products in NVFP4: what such a product sees of an operand (fp4.h). The ops of kernels/ops.h for
// products then multiply that.
#pragma once
#include <optional>

#include "kernels/fp4.h"
#include "kernels/fp8_ops.h"

namespace trainctl::kernels {

/// y = t * s * fp4(x / (t * s)), with t = 2^fp4_scale(the largest finite |x|) and the scale s = e4m3(the
/// largest finite |x| of the group / t / 6) of each group: kFp4Group neighbours of a row or column, or as
/// many by as many. What is not finite becomes NaN. Each of `parts` matrices one above another, or each
/// expert's rows (offsets i32 [1, E + 1] of SortByExpert), is an operand by itself; the first expert has
/// the number first_expert. noise: rounds at random, else to the nearest. mixes: x is what fp4_mix with
/// these signs makes of it first, in each 16 rows and rounded to its dtype; the last rows, of fewer,
/// stay.   x, y [M, C] of one dtype; y may be x
struct QuantizeFp4 {
  static constexpr const char* kName = "quantize_fp4";
  Matrix x, y;
  Fp8Groups groups = Fp8Groups::rows;
  Matrix offsets = {};
  int64_t parts = 1, first_expert = 0;
  Fp4Noise noise = {};
  std::optional<uint32_t> mixes = {};
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, y}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(y), each(offsets); }
  /// Calls each(first row, rows, number of the expert) for each operand.
  void for_each_part(auto&& each) const {
    if (offsets) {
      const auto* begins = offsets.template as<int32_t>();
      for (int64_t e = 0; e + 1 < offsets.cols; ++e)
        each(int64_t(begins[e]), int64_t(begins[e + 1] - begins[e]), uint32_t(first_expert + e));
    } else {
      for (int64_t part = 0; part < parts; ++part) each(part * (x.rows / parts), x.rows / parts, uint32_t(0));
    }
  }
};

}  // namespace trainctl::kernels
