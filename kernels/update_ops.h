// The ops of an update, on lists of boxes (ops.h says what every op has): the rules by which an optimizer
// changes parameters, the sums of squares that a step needs before, and the digest of state. m and v are the
// moments as kernels/moments.h reads them from a box's format; w follows from the new ones before they are
// rounded to it. lr is the step's learning rate times the box's lr_scale, rounded once. Without master
// weights w is read from param, and "w in param's dtype" is w rounded as UpdateBox says.
#pragma once
#include <span>

#include "kernels/digest.h"
#include "kernels/op_arguments.h"

namespace trainctl::kernels {

/// For every box, with g = grad * grad_scale (f32, each operation rounded once, in this order):
///   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
///   w = w - lr * weight_decay * w;   w = w - lr * (m / bc1) / (sqrt(v / bc2) + eps);   param = w in param's dtype
struct AdamW {
  static constexpr const char* kName = "adamw";
  std::span<const UpdateBox> boxes;
  AdamWStep step;
  OpShape cost_shape() const { return shape_of_boxes(kName, boxes); }
  double bytes() const { return bytes_of_boxes(boxes, 2); }
  void check() const { check_boxes(boxes); }
};

/// For every box, with g = grad * grad_scale (f32, each operation rounded once, in this order):
///   u = sign(beta1 m + (1 - beta1) g);   m = beta2 m + (1 - beta2) g
///   w = w - lr * weight_decay * w;   w = w - lr * u;   param = w in param's dtype
/// sign(0) = 0. Source: Lion, arXiv:2302.06675, algorithm 2.
struct Lion {
  static constexpr const char* kName = "lion";
  std::span<const UpdateBox> boxes;
  LionStep step;
  OpShape cost_shape() const { return shape_of_boxes(kName, boxes); }
  double bytes() const { return bytes_of_boxes(boxes, 1); }
  void check() const { check_boxes(boxes); }
};

/// For every box, with g = grad * grad_scale (f32, each operation rounded once, in this order):
///   m = momentum * m + g
///   w = w - lr * weight_decay * w;   w = w - lr * m;   param = w in param's dtype
struct Sgd {
  static constexpr const char* kName = "sgd";
  std::span<const UpdateBox> boxes;
  SgdStep step;
  OpShape cost_shape() const { return shape_of_boxes(kName, boxes); }
  double bytes() const { return bytes_of_boxes(boxes, 1); }
  void check() const { check_boxes(boxes); }
};

/// For every box, whose gradient counts the tokens of experts:
///   w = w + rate * sign(mean - grad), f32, rounded once;   param = w, in f32
/// Source: auxiliary-loss-free load balancing, arXiv:2408.15664, algorithm 1.
struct Balance {
  static constexpr const char* kName = "balance";
  std::span<const UpdateBox> boxes;
  BalanceStep step;
  OpShape cost_shape() const { return shape_of_boxes(kName, boxes); }
  double bytes() const { return bytes_of_boxes(boxes, 0); }
  void check() const;
};

/// The change of a bias whose expert has `count` tokens.
constexpr float balance_change(const BalanceStep& step, float count) {
  return double(count) < step.mean ? step.rate : double(count) > step.mean ? -step.rate : 0.0f;
}

/// out[i] = sum over box i of x^2, in double, in an order fixed by the box's shape alone.
///   boxes   f32 matrices
///   out     host memory, valid after stream.synchronize(); if it is not from allocate_host, the call blocks
struct SumSquares {
  static constexpr const char* kName = "sum_squares";
  std::span<const Matrix> boxes;
  double* out = nullptr;
  OpShape cost_shape() const;
  double bytes() const;
  void check() const;
};

/// A part of a tensor of state.
struct DigestBox {
  Matrix data;           ///< of any dtype of 1, 2 or 4 bytes
  uint64_t tensor = 0;   ///< digest_row
  int64_t first = 0;     ///< the index of its first element in the tensor
  int64_t row_step = 0;  ///< what the index grows by from row to row
};

/// out[i] = sum mod 2^64 over box i of digest_element(digest_row(tensor, first + r row_step), c, bits[r, c])
///   out     host memory, as of SumSquares
struct Digest {
  static constexpr const char* kName = "digest";
  std::span<const DigestBox> boxes;
  uint64_t* out = nullptr;
  OpShape cost_shape() const;
  double bytes() const;
  void check() const;
};

}  // namespace trainctl::kernels
