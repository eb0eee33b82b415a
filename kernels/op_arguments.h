// What ops are made of: kinds of arguments, and what the ops count and check with.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "kernels/head_scalars.h"
#include "kernels/moments.h"
#include "kernels/tensor.h"

namespace trainctl::kernels {

inline bool is_activation(DType d) { return d == DType::f32 || d == DType::bf16 || d == DType::f16; }

/// A [N, K] weight in the form that this device multiplies fastest. The op Pack fills it.
class PackedWeight {
 public:
  PackedWeight(int64_t n, int64_t k, DType dtype) : n(n), k(k), dtype(dtype) {}
  virtual ~PackedWeight() = default;
  virtual size_t bytes() const = 0;  ///< device memory in addition to the plain weight
  const int64_t n, k;
  const DType dtype;   ///< of the activations
};

enum class NormKind { rmsnorm, layernorm };

/// Which keys a query sees, and what becomes of its scores. The query at row t of its sequence has position
/// t + query_offset and sees the keys from first_visible_key() to its own position.
struct AttentionMask {
  int64_t query_offset = 0;            ///< of the first query among the keys of its sequence
  /// [B*T] of each query: the begin of its document; never decreases within a sequence, so that the keys of a
  /// block of queries are found from its first and its last row. null: 0
  const int32_t* first_key = nullptr;
  int64_t window = 0;                  ///< a query sees itself and the window - 1 keys before it; 0: all
  float cap = 0;                       ///< a score s becomes cap * tanh(s / cap); 0: it stays
  OfHeadScalars<const float*> scalars;  ///< [H] of each that is learned, else null
};

/// The first key that a query sees. `m`: its row in the batch, `position`: among the keys of its sequence.
constexpr int64_t first_visible_key(const AttentionMask& mask, int64_t m, int64_t position) {
  const int64_t of_document = mask.first_key ? mask.first_key[m] : 0;
  const int64_t of_window = mask.window > 0 ? position - mask.window + 1 : 0;
  return of_document > of_window ? of_document : of_window;
}

struct AttentionShape {
  int64_t batch = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0f;  ///< usually 1 / sqrt(head_dim)
  int64_t keys = 0;    ///< of a sequence; 0: as many as queries
  AttentionMask mask = {};
  int64_t keys_of_sequence() const { return keys > 0 ? keys : seq_len; }
  bool has_own_keys() const { return keys_of_sequence() == seq_len && mask.query_offset == 0; }
  /// Shorter than the sequence: another window hides nothing.
  bool has_window() const { return mask.window > 0 && mask.window < seq_len + mask.query_offset; }
  /// Each query sees all keys up to its position, with scores as they are: also behind other keys.
  bool sees_all_before() const {
    return !has_window() && !mask.first_key && mask.cap == 0 && !mask.scalars.any();
  }
  bool is_causal() const { return has_own_keys() && sees_all_before(); }
  void arguments(auto&& each) {  ///< the mask's arrays; see ops.h
    each(mask.first_key, mask.first_key ? size_t(batch * seq_len) * 4 : 0);
    for (const float*& scalar : mask.scalars.values) each(scalar, scalar ? size_t(heads) * 4 : 0);
  }
};

/// The pairs of a query and a key that it sees, in one sequence of `seq_len` queries and keys: the sum over t
/// of min(t + 1, window), or of t + 1 if window = 0.
constexpr int64_t visible_pairs(int64_t seq_len, int64_t window) {
  const int64_t w = window > 0 && window < seq_len ? window : seq_len;
  return w * (w + 1) / 2 + (seq_len - w) * w;
}

/// One box of a parameter with its optimizer state. master: [rows * cols] contiguous f32; first_moment and
/// second_moment the same in the format `moments` (kernels/moments.h), null: the rule keeps none; their
/// scales, of int8: f32 [moment_blocks(rows * cols)]. grad: f32, param: activation dtype (the compute copy),
/// both with their own row stride. Without master the weights are those of param, f32 or bf16; in bf16 they
/// are rounded at random (kernels/weight_rounding.h), element (r, c) with the index first + r * row_step + c.
struct UpdateBox {
  float* master = nullptr;
  void *first_moment = nullptr, *second_moment = nullptr;
  const float* grad = nullptr;
  int64_t grad_stride = 0;
  Matrix param;  ///< its shape is the shape of the box
  float weight_decay = 0;
  float lr_scale = 1;  ///< factor of the step's learning rate
  Moments moments = Moments::f32;
  float *first_scales = nullptr, *second_scales = nullptr;
  uint64_t rounding = 0;            ///< of the parameter, with the run's seed
  int64_t first = 0, row_step = 0;  ///< in the whole parameter
};

/// Factors of one AdamW step. bias_correction1 = 1 - beta1^t, bias_correction2 = 1 - beta2^t (t from 1).
struct AdamWStep {
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, grad_scale = 1, bias_correction1 = 1, bias_correction2 = 1;
  uint32_t update = 0;  ///< its number, for the rounding of moments and weights
};

/// Factors of one Lion step.
struct LionStep {
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, grad_scale = 1;
  uint32_t update = 0;  ///< as of AdamWStep
};

/// Factors of one step of SGD with momentum.
struct SgdStep {
  float lr = 0, momentum = 0.95f, grad_scale = 1;
  uint32_t update = 0;  ///< as of AdamWStep
};

/// Factors of one step of biases that balance experts. mean: of the counts.
struct BalanceStep {
  float rate = 0;
  double mean = 0;
};

/// An op and the shape that determines its cost. Products: [m, k] times [k, n]. Attention: m rows, n = query
/// heads * head_dim, k = seq_len, and the window where it is shorter. Other ops: m x n elements.
struct OpShape {
  std::string_view op;
  int64_t m = 0, n = 0, k = 0, window = 0;
  auto operator<=>(const OpShape&) const = default;
  double volume() const { return double(m) * double(n) * double(k); }
};

// ---- what ops count and check with ------------------------------------------------------------------------
double bytes_of(std::initializer_list<Matrix> matrices);
/// The matrices and the packed weight: [N, K] in the dtype of the first matrix.
double bytes_with(const PackedWeight& w, std::initializer_list<Matrix> matrices);
/// Activation dtype all, one shape. Strides may differ.
void check_same_shape(std::initializer_list<Matrix> matrices);
/// One dtype, too.
void check_same(std::initializer_list<Matrix> matrices);
void check_embedding(const Matrix& table, const Matrix& rows);
void check_position(const Matrix& table, const Matrix& rows, int64_t seq_len);
void check_norm(NormKind kind, const Matrix& x, const Matrix& y, const Matrix& weight, const Matrix& bias);
/// The boxes of an update: m boxes of n elements together.
OpShape shape_of_boxes(std::string_view op, std::span<const UpdateBox> boxes);
void check_boxes(std::span<const UpdateBox> boxes);
/// What an update reads and writes that keeps `moments` moments of each element.
double bytes_of_boxes(std::span<const UpdateBox> boxes, int moments);
/// `v` is f32 [1, n].
void check_f32_row(const Matrix& v, int64_t n);
/// left [M, inner] times a weight gives out [M, out_cols]. `packed`: the weight's dtype.
void check_product(const Matrix& left, int64_t inner, const Matrix& out, int64_t out_cols, DType packed);
void check_attention(const AttentionShape& s, const Matrix& q, const Matrix& k, const Matrix& v,
                     const Matrix& out);
/// On a device whose memory the host may read: the documents of the mask are in order.
void check_documents(const AttentionShape& s);
/// The cost of attention by its shape, and its FLOPs for each product of scores and one of values. A causal
/// mask counts as half of all pairs, a shorter window by its visible pairs, documents as if there were none.
OpShape attention_cost(std::string_view op, const AttentionShape& s);
double attention_flops(const AttentionShape& s);
void check_logits(const Matrix& logits, float cap);
/// The columns of x are whole groups, over whose `count` values each norm is.
void check_groups(const Matrix& x, int64_t group, int64_t count);
void check_gate(bool clamps, float limit);

/// Of one f32 for each group of each row.
inline size_t group_bytes(const Matrix& x, int64_t group) { return size_t(x.rows * (x.cols / group)) * 4; }
inline OpShape elements(std::string_view op, const Matrix& m) { return {op, m.rows, m.cols}; }

}  // namespace trainctl::kernels
