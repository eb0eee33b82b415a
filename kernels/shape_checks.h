// The checks of op arguments that every backend makes before it accesses memory. A violation is an ENSURE
// failure.
#pragma once
#include "kernels/backend.h"
#include "runtime/base/error.h"

namespace trainctl::kernels {

inline bool is_activation(DType d) { return d == DType::f32 || d == DType::bf16; }

/// Both matrices are f32 or bf16 and have the same shape. Strides may differ.
inline void check_same_shape(const Matrix& a, const Matrix& b) {
  ENSURE(a.rows == b.rows && a.cols == b.cols, "[{}, {}] against [{}, {}]", a.rows, a.cols, b.rows, b.cols);
  ENSURE(is_activation(a.dtype) && is_activation(b.dtype), "dtypes {} and {}", name_of(a.dtype), name_of(b.dtype));
}

inline void check_same(const Matrix& a, const Matrix& b) {
  check_same_shape(a, b);
  ENSURE(a.dtype == b.dtype, "dtypes {} and {}", name_of(a.dtype), name_of(b.dtype));
}

/// `v` is f32 [1, n], or empty if `optional`.
inline void check_f32_row(const Matrix& v, int64_t n, bool optional) {
  if (!v) {
    ENSURE(optional);
    return;
  }
  ENSURE(v.rows == 1 && v.cols == n && v.dtype == DType::f32, "[{}, {}] {} instead of f32 [1, {}]", v.rows, v.cols,
         name_of(v.dtype), n);
}

/// `bias` is [1, n] in f32 or in `preferred` (Backend::bias_dtype()), or empty.
inline void check_bias(const Matrix& bias, int64_t n, DType preferred) {
  if (bias && bias.dtype == preferred) {
    ENSURE(bias.rows == 1 && bias.cols == n, "a bias [{}, {}] instead of [1, {}]", bias.rows, bias.cols, n);
  } else {
    check_f32_row(bias, n, true);
  }
}

inline void check_embedding(const Matrix& table, const Matrix& rows) {
  ENSURE(table.cols == rows.cols, "a table of {} columns for rows of {}", table.cols, rows.cols);
  ENSURE(is_activation(table.dtype) && is_activation(rows.dtype));
}

inline void check_norm(NormKind kind, const Matrix& x, const Matrix& y, const Matrix& weight, const Matrix& bias) {
  check_same(x, y);
  check_f32_row(weight, x.cols, false);
  check_f32_row(bias, x.cols, true);
  ENSURE(kind == NormKind::layernorm || !bias, "an rmsnorm has no bias");
}

/// left [M, inner] times a weight gives out [M, out_cols]. `packed`: the activation dtype of the packed
/// weight.
inline void check_product(const Matrix& left, int64_t inner, const Matrix& out, int64_t out_cols, DType packed) {
  ENSURE(left.cols == inner && out.cols == out_cols && left.rows == out.rows,
         "[{}, {}] times a weight [{} -> {}] into [{}, {}]", left.rows, left.cols, inner, out_cols, out.rows, out.cols);
  ENSURE(left.dtype == packed, "{} activations with a weight packed for {}", name_of(left.dtype), name_of(packed));
  ENSURE(out.dtype == packed || out.dtype == DType::f32);
}

inline void check_weight_gradient(const Matrix& dy, const Matrix& x, const Matrix& dw, const Matrix& dbias) {
  ENSURE(dy.rows == x.rows && dw.rows == dy.cols && dw.cols == x.cols, "dy [{}, {}], x [{}, {}], dw [{}, {}]", dy.rows,
         dy.cols, x.rows, x.cols, dw.rows, dw.cols);
  ENSURE(dw.dtype == DType::f32 && dy.dtype == x.dtype && is_activation(x.dtype));
  check_f32_row(dbias, dy.cols, true);
}

inline void check_rope(const Matrix& x, int64_t head_dim, int64_t seq_len) {
  ENSURE(head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0 && seq_len > 0, "{} columns, head_dim {}, T {}",
         x.cols, head_dim, seq_len);
  ENSURE(is_activation(x.dtype));
}

inline void check_attention(const AttentionShape& s, const Matrix& q, const Matrix& k, const Matrix& v,
                            const Matrix& out) {
  ENSURE(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0, "{} heads, {} kv heads, head_dim {}", s.heads,
         s.kv_heads, s.head_dim);
  check_same(q, out);
  check_same(k, v);
  ENSURE(q.dtype == k.dtype);
  ENSURE(q.rows == s.batch * s.seq_len && k.rows == s.batch * s.keys_of_sequence() &&
             q.cols == s.heads * s.head_dim && k.cols == s.kv_heads * s.head_dim,
         "q [{}, {}], k [{}, {}] for B {}, T {}, H {}, G {}, D {}", q.rows, q.cols, k.rows, k.cols, s.batch, s.seq_len,
         s.heads, s.kv_heads, s.head_dim);
  ENSURE(s.mask.query_offset >= 0 && s.mask.query_offset + s.seq_len <= s.keys_of_sequence(),
         "queries {} to {} of {} keys", s.mask.query_offset, s.mask.query_offset + s.seq_len, s.keys_of_sequence());
  ENSURE(s.mask.cap >= 0, "a cap of {}", s.mask.cap);
}

/// Of backends that compute causal attention only.
inline void check_causal(const AttentionShape& s) {
  ENSURE(s.is_causal(), "only the reference computes attention with documents, windows, caps or sinks");
}

}  // namespace trainctl::kernels
