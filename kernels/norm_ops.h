// The ops of norms: of whole rows, and of groups of neighbouring columns of a row, such as the heads of queries
// and keys. ops.h has the letters and the rules of every op.
#pragma once
#include "kernels/op_arguments.h"

namespace trainctl::kernels {

/// y from the stored sum and stats, bit-identical to NormForward's y (for recomputation).
struct NormApply {
  static constexpr const char* kName = "norm_apply";
  NormKind kind = NormKind::rmsnorm;
  Matrix x;
  const float* stats = nullptr;
  Matrix weight, bias, y;
  float weight_offset = 0;  ///< added to each weight: 1 where files keep weight - 1 (Gemma)
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, weight, bias, y}); }
  void check() const { check_norm(kind, x, y, weight, bias); }
  void arguments(auto&& each) { each(x), each(stats, size_t(x.rows) * 8), each(weight), each(bias), each(y); }
};

/// sum = x + delta (delta may be empty: sum = x and `sum` is not written); with w = weight + weight_offset:
/// layernorm: y = (sum - mean) * rstd * w + bias (bias may be empty);   rmsnorm: y = sum * rstd * w (bias empty)
/// stats f32 [M, 2] = (mean, rstd); mean = 0 for rmsnorm. x, delta, sum, y: activations [M, C]; `sum` may
/// be x. The sum is rounded to the activation dtype before it is normalised.
struct NormForward {
  static constexpr const char* kName = "norm_forward";
  NormKind kind = NormKind::rmsnorm;
  Matrix x, delta, weight, bias;
  float eps = 0;
  Matrix sum, y;
  float* stats = nullptr;
  float weight_offset = 0;  ///< as of NormApply
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, delta, weight, bias, delta ? sum : Matrix{}, y}); }
  void check() const {
    check_norm(kind, x, y, weight, bias);
    if (delta) check_same({x, delta, sum});
  }
  void arguments(auto&& each) {
    each(x), each(delta), each(weight), each(bias), each(sum), each(y), each(stats, size_t(x.rows) * 8);
  }
};

/// Gradient of the above at x (= the stored sum): dx = d(norm)/dx . dy + dresidual (may be empty);
/// dweight, dbias (dbias may be empty) f32 [1, C] (+)= their sums over the rows, each sum rounded before it
/// is added. dx may be dresidual.
struct NormBackward {
  static constexpr const char* kName = "norm_backward";
  NormKind kind = NormKind::rmsnorm;
  Matrix dy, x, weight;
  const float* stats = nullptr;
  Matrix dresidual, dx, dweight, dbias;
  bool accumulate = false;
  float weight_offset = 0;  ///< as of NormApply
  OpShape cost_shape() const { return elements(kName, dx); }
  double bytes() const { return bytes_of({dy, x, weight, dresidual, dx, dweight, dbias}); }
  void check() const {
    check_norm(kind, x, dx, weight, dbias);
    check_same({x, dy});
    if (dresidual) check_same({x, dresidual});
    check_f32_row(dweight, x.cols);
  }
  void arguments(auto&& each) {
    each(dy), each(x), each(weight), each(stats, size_t(x.rows) * 8), each(dresidual), each(dx),
        each(dweight), each(dbias);
  }
};

// RMSNorm of groups: the columns of x are cut into G = x.cols / group groups of `group` neighbours, and each
// group of each row has a norm over `count` values: its own, or more where other ranks hold the rest. Then the
// sums and dots of a rank are parts of those over the ranks, and the caller adds them before they are used.
// w = weight + weight_offset, weight f32 [1, group], the same for all groups; sums and dots f32 [M, G].

/// sums[m, g] = sum over the group of x^2.
struct GroupNormSums {
  static constexpr const char* kName = "group_norm_sums";
  Matrix x;
  int64_t group = 0, count = 0;
  float* sums = nullptr;
  OpShape cost_shape() const { return elements(kName, x); }
  double bytes() const { return bytes_of({x}); }
  void check() const { check_groups(x, group, count); }
  void arguments(auto&& each) { each(x), each(sums, group_bytes(x, group)); }
};

/// y = x * rstd * w, rstd = 1 / sqrt(sums / count + eps); y may be x.
struct GroupNormApply {
  static constexpr const char* kName = "group_norm_apply";
  Matrix x;
  int64_t group = 0, count = 0;
  const float* sums = nullptr;
  Matrix weight;
  float weight_offset = 0;  ///< as of NormApply
  float eps = 0;
  Matrix y;
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, weight, y}); }
  void check() const { check_groups(x, group, count), check_same({x, y}), check_f32_row(weight, group); }
  void arguments(auto&& each) { each(x), each(sums, group_bytes(x, group)), each(weight), each(y); }
};

/// dots[m, g] = sum over the group of dy * w * x.
struct GroupNormDots {
  static constexpr const char* kName = "group_norm_dots";
  Matrix dy, x;
  int64_t group = 0, count = 0;
  Matrix weight;
  float weight_offset = 0;  ///< as of NormApply
  float* dots = nullptr;
  OpShape cost_shape() const { return elements(kName, x); }
  double bytes() const { return bytes_of({dy, x, weight}); }
  void check() const { check_groups(x, group, count), check_same({x, dy}), check_f32_row(weight, group); }
  void arguments(auto&& each) { each(dy), each(x), each(weight), each(dots, group_bytes(x, group)); }
};

/// dx = rstd * dy * w - x * rstd^3 * dots / count; dweight f32 [1, group] (+)= sum over rows and groups of
/// dy * x * rstd, rounded before it is added. dx may be dy.
struct GroupNormBackward {
  static constexpr const char* kName = "group_norm_backward";
  Matrix dy, x;
  int64_t group = 0, count = 0;
  const float *sums = nullptr, *dots = nullptr;
  Matrix weight;
  float weight_offset = 0;  ///< as of NormApply
  float eps = 0;
  Matrix dx, dweight;
  bool accumulate = false;
  OpShape cost_shape() const { return elements(kName, dx); }
  double bytes() const { return bytes_of({dy, x, weight, dx, dweight}); }
  void check() const {
    check_groups(x, group, count), check_same({x, dy, dx});
    check_f32_row(weight, group), check_f32_row(dweight, group);
  }
  void arguments(auto&& each) {
    each(dy), each(x), each(sums, group_bytes(x, group)), each(dots, group_bytes(x, group)), each(weight),
        each(dx);
    each(dweight);
  }
};

}  // namespace trainctl::kernels
