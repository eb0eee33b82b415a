// The ops of a device, each a value: a struct with its matrices and its shape. A backend runs an op
// (Backend::run), a tally counts it. The formula in an op's docstring defines the op; kernels/reference
// computes that formula in plain loops.
//
// Letters: M rows = tokens of a micro-batch (b * T + t), C/K input channels, N output channels, T sequence
// length, H query heads, G key/value heads (H is a multiple of G), D head dimension, V vocabulary rows held
// by this rank.
//
// Rules for every op, on every device:
//  - "activation" dtype is f32, bf16 or, on CPUs, f16 (all activations of one op agree); sums inside an op
//    are at least f32.
//  - Weight gradients, bias gradients, norm parameters and biases are f32.
//  - `accumulate = true` adds to the destination; false overwrites it, also where it held NaN.
//  - Deterministic: for one shape the same bits with any thread count and any alignment.
//  - Pointers are device memory, 64-byte aligned at the start of an allocation. Shapes that disagree are an
//    ENSURE failure. A failure of the device is Error(kHardware).
//  - Only the first run of an op with some shapes may allocate.
//
// Every op has:
//  - kName              its name in tallies, messages and profiles
//  - cost_shape()       the shape that determines its cost; m * n = 0: there is nothing to compute
//  - bytes()            the size of the arguments that it reads or writes, as a tally counts it
//  - flops()            products and attention alone
//  - apart_bytes()      products alone, if not 0: what they move before or after they multiply: the activation at
//                       their end, the sums of a bias' gradient
//  - check()            fails an ENSURE if its arguments disagree; every backend calls it first
//  - arguments(each)    calls each(matrix), each(pointer, bytes) or each(weight) for all that is device memory,
//                       so that a caller can move or cut it; an op on a list of boxes has none
// Those of norms, activations, the loss, experts, latent attention, FP8 and NVFP4 are in norm_ops.h,
// activation_ops.h, loss_ops.h, moe_ops.h, latent_ops.h, fp8_ops.h and fp4_ops.h.
#pragma once
#include <span>
#include <variant>

#include "kernels/activation_ops.h"
#include "kernels/fp4_ops.h"
#include "kernels/fp8_ops.h"
#include "kernels/latent_ops.h"
#include "kernels/loss_ops.h"
#include "kernels/moe_ops.h"
#include "kernels/norm_ops.h"
#include "kernels/op_arguments.h"
#include "kernels/update_ops.h"

namespace trainctl::kernels {

// ---- elementwise and copies -------------------------------------------------------------------------------
struct FillZero {
  static constexpr const char* kName = "fill_zero";
  void* data = nullptr;
  size_t size = 0;   ///< bytes
  OpShape cost_shape() const { return {kName, 1, int64_t(size)}; }
  double bytes() const { return double(size); }
  void check() const {}
  void arguments(auto&& each) { each(data, size); }
};

/// dst = src, converted to dst's dtype (round to nearest even); f32 and bf16; strides may differ.
struct Copy {
  static constexpr const char* kName = "copy";
  Matrix src, dst;
  OpShape cost_shape() const { return elements(kName, dst); }
  double bytes() const { return bytes_of({src, dst}); }
  void check() const { check_same_shape({src, dst}); }
  void arguments(auto&& each) { each(src), each(dst); }
};

/// dst = dst + src; both of one dtype, sum in f32, rounded once.
struct Add {
  static constexpr const char* kName = "add";
  Matrix src, dst;
  OpShape cost_shape() const { return elements(kName, dst); }
  double bytes() const { return bytes_of({src, dst}); }
  void check() const { check_same({src, dst}); }
  void arguments(auto&& each) { each(src), each(dst); }
};

/// out[i] = balanced tree sum over inputs[0..n)[i]: neighbours are added pairwise, an odd last one is
/// carried to the next level; each addition in f32. activation dtype (16 bits: f32 inside, rounded at the
/// end). `out` may be one of the inputs. All contiguous, `count` elements.
struct TreeSum {
  static constexpr const char* kName = "tree_sum";
  std::span<const void* const> inputs;
  void* out = nullptr;
  DType dtype = DType::f32;
  int64_t count = 0;
  OpShape cost_shape() const { return {kName, int64_t(inputs.size()), count}; }
  double bytes() const { return double(inputs.size() + 1) * double(count) * double(size_of(dtype)); }
  void check() const { ENSURE(!inputs.empty() && is_activation(dtype)); }
};

/// out = bf16(left) + bf16(right): operands in f32 are rounded to bf16 first (to nearest even), the sum is
/// made in f32 and rounded once, to out's dtype. left and right have one dtype; each of the dtypes is f32
/// or bf16. `out` may be an operand of its dtype.
struct AddRounded {
  static constexpr const char* kName = "add_rounded";
  Matrix left, right, out;
  OpShape cost_shape() const { return elements(kName, out); }
  double bytes() const { return bytes_of({left, right, out}); }
  void check() const { check_same({left, right}), check_same_shape({left, out}); }
  void arguments(auto&& each) { each(left), each(right), each(out); }
};

/// out = alpha * x + beta * out, f32; each operation is rounded once. beta = 0: out is not read. x: f32, or
/// bf16 on a host.
struct ScaledAdd {
  static constexpr const char* kName = "scaled_add";
  Matrix x, out;
  float alpha = 1, beta = 1;
  OpShape cost_shape() const { return elements(kName, out); }
  double bytes() const { return bytes_of({x, out}) + (beta == 0 ? 0 : bytes_of({out})); }
  void check() const {
    check_same_shape({x, out});
    ENSURE(out.dtype == DType::f32 && (x.dtype == DType::f32 || x.dtype == DType::bf16));
  }
  void arguments(auto&& each) { each(x), each(out); }
};

// ---- embedding --------------------------------------------------------------------------------------------
/// out[m] = scale * table[ids[m] - vocab_begin], rounded once, where that row exists here, else 0.
/// ids i32 [M], table [V, C], out [M, C]
struct EmbeddingForward {
  static constexpr const char* kName = "embedding_forward";
  const int32_t* ids = nullptr;
  Matrix table;
  int64_t vocab_begin = 0;
  Matrix out;
  float scale = 1;
  OpShape cost_shape() const { return elements(kName, out); }
  double bytes() const { return bytes_of({out, out}); }
  void check() const { check_embedding(table, out); }
  void arguments(auto&& each) { each(ids, size_t(out.rows) * 4), each(table), each(out); }
};

/// dtable[ids[m] - vocab_begin] += scale * dout[m], rows in order of m; the product is rounded to f32.   dtable f32 [V, C], always accumulates
struct EmbeddingBackward {
  static constexpr const char* kName = "embedding_backward";
  const int32_t* ids = nullptr;
  Matrix dout;
  int64_t vocab_begin = 0;
  Matrix dtable;
  float scale = 1;
  OpShape cost_shape() const { return elements(kName, dout); }
  double bytes() const { return bytes_of({dout, dout}); }
  void check() const {
    check_embedding(dtable, dout);
    ENSURE(dtable.dtype == DType::f32);
  }
  void arguments(auto&& each) { each(ids, size_t(dout.rows) * 4), each(dout), each(dtable); }
};

/// x[m] += table[positions[m]], without positions table[(first_row + m) mod T].
/// table [T, C]; x [M, C] holds rows first_row.. of the micro-batch; positions i32 [M], each below T
struct AddPosition {
  static constexpr const char* kName = "add_position";
  Matrix table;
  int64_t first_row = 0, seq_len = 0;
  Matrix x;
  const int32_t* positions = nullptr;
  OpShape cost_shape() const { return elements(kName, x); }
  double bytes() const { return bytes_of({x, x}); }
  void check() const { check_position(table, x, seq_len); }
  void arguments(auto&& each) { each(table), each(x), each(positions, size_t(x.rows) * 4); }
};

/// dtable[positions[m]] += dx[m], without positions dtable[(first_row + m) mod T], in order of m.   dtable f32, at least T rows
struct AddPositionBackward {
  static constexpr const char* kName = "add_position_backward";
  Matrix dx;
  int64_t first_row = 0, seq_len = 0;
  Matrix dtable;
  const int32_t* positions = nullptr;  ///< as of AddPosition
  OpShape cost_shape() const { return elements(kName, dx); }
  double bytes() const { return bytes_of({dx, dx}); }
  void check() const {
    check_position(dtable, dx, seq_len);
    ENSURE(dtable.dtype == DType::f32);
  }
  void arguments(auto&& each) { each(dx), each(dtable), each(positions, size_t(dx.rows) * 4); }
};

// ---- matrix products --------------------------------------------------------------------------------------
/// Fills `packed` from w [N, K] (activation dtype: the compute copy). Run it after every change of w. `w`
/// must stay alive and unchanged while `packed` is used, because a device may read it directly.
struct Pack {
  static constexpr const char* kName = "pack";
  Matrix w;
  PackedWeight* packed = nullptr;
  OpShape cost_shape() const { return elements(kName, w); }
  double bytes() const { return bytes_of({w}); }
  void check() const { ENSURE(w.rows == packed->n && w.cols == packed->k && w.dtype == packed->dtype); }
};

/// y = x w^T + bias.
/// x [M, K], y [M, N] activations (y may also be f32); bias [1, N] f32 or of Backend::bias_dtype(), or empty
struct LinearForward {
  static constexpr const char* kName = "linear_forward";
  Matrix x;
  const PackedWeight* w = nullptr;
  Matrix bias, y;
  OpShape cost_shape() const { return {kName, x.rows, y.cols, x.cols}; }
  double bytes() const { return bytes_with(*w, {x, bias, y}); }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const;
  void arguments(auto&& each) { each(x), each(w), each(bias), each(y); }
};

/// dx = dy w.   dy [M, N], dx [M, K]
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_backward_input";
  Matrix dy;
  const PackedWeight* w = nullptr;
  Matrix dx;
  OpShape cost_shape() const { return {kName, dy.rows, dx.cols, dy.cols}; }
  double bytes() const { return bytes_with(*w, {dy, dx}); }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const { check_product(dy, w->n, dx, w->k, w->dtype); }
  void arguments(auto&& each) { each(dy), each(w), each(dx); }
};

/// pre = x w^T + bias, y = gelu_tanh(pre). A device may fuse the two. Every run on a device gives the same bits,
/// which may differ from those of the two separate ops.
struct LinearGeluForward {
  static constexpr const char* kName = "linear_gelu_forward";
  Matrix x;
  const PackedWeight* w = nullptr;
  Matrix bias, pre, y;
  LinearForward product() const { return {.x = x, .w = w, .bias = bias, .y = pre}; }
  ActivationForward activation() const { return {.x = pre, .y = y}; }
  OpShape cost_shape() const { return {kName, x.rows, y.cols, x.cols}; }
  double bytes() const { return bytes_with(*w, {x, bias, pre, y}); }
  double apart_bytes() const { return bytes_of({y}); }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const { product().check(), activation().check(); }
  void arguments(auto&& each) { each(x), each(w), each(bias), each(pre), each(y); }
};

/// dx = (dy w) * gelu_tanh'(pre).   dy [M, N], pre and dx [M, K]
struct LinearGeluBackwardInput {
  static constexpr const char* kName = "linear_gelu_backward_input";
  Matrix dy;
  const PackedWeight* w = nullptr;
  Matrix pre, dx;
  LinearBackwardInput product() const { return {.dy = dy, .w = w, .dx = dx}; }
  ActivationBackward activation() const { return {.x = pre, .dy = dx, .dx = dx}; }
  OpShape cost_shape() const { return {kName, dy.rows, dx.cols, dy.cols}; }
  double bytes() const { return bytes_with(*w, {dy, pre, dx}); }
  double apart_bytes() const { return bytes_of({pre}); }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const { product().check(), activation().check(); }
  void arguments(auto&& each) { each(dy), each(w), each(pre), each(dx); }
};

/// dw (+)= dy^T x ; dbias (+)= sum over m of dy[m].
/// dw f32 [N, K] (stride allowed), dbias f32 [1, N] or empty
struct LinearBackwardWeight {
  static constexpr const char* kName = "linear_backward_weight";
  Matrix dy, x, dw, dbias;
  bool accumulate = false;
  OpShape cost_shape() const { return {kName, dy.cols, x.cols, dy.rows}; }
  double bytes() const { return bytes_of({dy, x, dw, dbias}); }
  double apart_bytes() const { return dbias ? bytes_of({dy}) : 0; }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const;
  void arguments(auto&& each) { each(dy), each(x), each(dw), each(dbias); }
};

// ---- attention --------------------------------------------------------------------------------------------
/// In place on x [M, heads * D]: of each head R = rotary_dim columns, from rotary_begin on, turn in pairs,
/// (a, b) -> (a cos - b sin, b cos + a sin); inverse = true rotates back (the gradient). Pair i of them is
/// columns (i, i + R/2) (Hugging Face), or (2i, 2i + 1) where interleaved.
/// cos_sin f32 [T, R]: row t holds R/2 cosines, then R/2 sines. Row m has position positions[m], or m mod T.
struct Rope {
  static constexpr const char* kName = "rope";
  Matrix x;
  int64_t head_dim = 0, seq_len = 0;
  const float* cos_sin = nullptr;
  bool inverse = false;
  int64_t rotary_dim = 0;  ///< R; 0: all of a head's columns
  bool interleaved = false;
  const int32_t* positions = nullptr;  ///< [M], each below T
  int64_t rotary_begin = 0;
  int64_t turned() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  OpShape cost_shape() const { return elements(kName, x); }
  double bytes() const { return bytes_of({x, x}) * double(turned()) / double(head_dim); }
  void check() const;
  void arguments(auto&& each) {
    each(x), each(cos_sin, size_t(seq_len * turned()) * 4), each(positions, size_t(x.rows) * 4);
  }
};

/// out = softmax(capped(scale q k^T) of the keys that the mask lets a query see) v per head; query head h
/// reads key/value head h / (H / G). q, out [B*T, H*D], k, v [B*keys, G*D] (columns of one matrix allowed);
/// lse f32 [B*T, H]: natural log of each row's sum of exponentials, with the maximum, and with that of its
/// sink. A query that sees no key has out = 0. Never stores T x T.
/// FLOPs: causal attention counts as half of full attention, a window shorter than T by its visible pairs,
/// documents as if there were none.
struct AttentionForward {
  static constexpr const char* kName = "attention_forward";
  AttentionShape shape;
  Matrix q, k, v, out;
  float* lse = nullptr;
  OpShape cost_shape() const { return attention_cost(kName, shape); }
  double bytes() const { return bytes_of({q, k, v, out}); }
  double flops() const { return attention_flops(shape); }
  void check() const { check_attention(shape, q, k, v, out); }
  void arguments(auto&& each) {
    each(q), each(k), each(v), each(out), each(lse, size_t(q.rows * shape.heads) * 4), shape.arguments(each);
  }
};

/// dq, dk, dv of the above from dout; overwrites. P = exp(capped(scale q k^T) - lse), delta = sum_d out * dout.
struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  AttentionShape shape;
  Matrix q, k, v, out;
  const float* lse = nullptr;
  Matrix dout, dq, dk, dv;
  OpShape cost_shape() const { return attention_cost(kName, shape); }
  double bytes() const { return bytes_of({q, k, v, out, dout, dq, dk, dv}); }
  double flops() const { return 2 * attention_flops(shape); }
  void check() const { check_attention(shape, q, k, v, out), check_attention(shape, dq, dk, dv, dout); }
  void arguments(auto&& each) {
    each(q), each(k), each(v), each(out), each(lse, size_t(q.rows * shape.heads) * 4);
    each(dout), each(dq), each(dk), each(dv), shape.arguments(each);
  }
};

/// The gradient of a scalar that attention learns for each head (head_scalars.h): dvalues[h] (+)= sum over
/// rows m, in order, of factor(values[h], lse[m, h]) * sum_d left[m, h, d] * right[m, h, d], of its factor,
/// left and right; the sum is rounded before it is added. values, dvalues f32 [1, H]; lse f32 [M, H]
struct HeadScalarBackward {
  static constexpr const char* kName = "head_scalar_backward";
  HeadScalar scalar;
  QueryRows rows;
  const float* lse = nullptr;
  Matrix values, dvalues;
  int64_t head_dim = 0;
  bool accumulate = false;
  const Matrix& left() const { return rows.*row_of(scalar).left; }
  const Matrix& right() const { return rows.*row_of(scalar).right; }
  int64_t heads() const { return left().cols / head_dim; }
  OpShape cost_shape() const { return elements(kName, left()); }
  double bytes() const { return bytes_of({left(), right(), values, dvalues}); }
  void check() const;
  void arguments(auto&& each) {
    each(lse, size_t(left().rows * heads()) * 4);
    each(rows.*row_of(scalar).left), each(rows.*row_of(scalar).right), each(values), each(dvalues);
  }
};

// ---- sums -------------------------------------------------------------------------------------------------
/// *out = sum of x[0..n) in double, in an order fixed by n and the device. out: host memory, as above.
struct Sum {
  static constexpr const char* kName = "sum";
  const float* x = nullptr;
  int64_t n = 0;
  double* out = nullptr;
  OpShape cost_shape() const { return {kName, 1, n}; }
  double bytes() const { return 4.0 * double(n); }
  void check() const {}
  void arguments(auto&& each) { each(x, size_t(n) * 4); }
};

using Op = std::variant<
    FillZero, Copy, Add, TreeSum, AddRounded, EmbeddingForward, EmbeddingBackward, AddPosition,
    AddPositionBackward, NormForward, NormBackward, NormApply, GroupNormSums, GroupNormApply, GroupNormDots,
    GroupNormBackward, Pack, LinearForward, LinearBackwardInput, LinearGeluForward, LinearGeluBackwardInput,
    LinearBackwardWeight, ActivationForward, ActivationBackward, GatedForward, GatedBackward,
    SigmoidGateForward, SigmoidGateBackward, Rope, AttentionForward, AttentionBackward, HeadScalarBackward,
    FormLogits, CrossEntropyStats, CrossEntropyCombine, CrossEntropyBackward, AdamW, SumSquares, Sum, Lion,
    Sgd, Balance, ScaledAdd, Route, RouteBackward, AddCounts, CountMargins, SortByExpert, TokensOfRanks,
    GatherRows, CombineRows, ScaleRows, ScaleRowsBackward, GateRows, GateRowsBackward, AddExpertBias,
    ExpertBiasBackward, ExpertBiasWeights, GroupedForward, GroupedBackwardInput, GroupedBackwardWeight,
    ExpandKeys, ExpandKeysBackward, Quantize, QuantizeWeight, Digest, QuantizeFp4>;

}  // namespace trainctl::kernels
