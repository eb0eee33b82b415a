#include "kernels/ops.h"

#include "runtime/base/error.h"

namespace trainctl::kernels {

double bytes_of(std::initializer_list<Matrix> matrices) {
  double bytes = 0;
  for (const Matrix& m : matrices) bytes += m ? double(m.count()) * double(size_of(m.dtype)) : 0;
  return bytes;
}

double bytes_with(const PackedWeight& w, std::initializer_list<Matrix> matrices) {
  return bytes_of(matrices) + double(w.n) * double(w.k) * double(size_of(matrices.begin()->dtype));
}

void check_same_shape(std::initializer_list<Matrix> matrices) {
  const Matrix& a = *matrices.begin();
  for (const Matrix& b : matrices) {
    ENSURE(a.rows == b.rows && a.cols == b.cols, "[{}, {}] against [{}, {}]", a.rows, a.cols, b.rows, b.cols);
    ENSURE(is_activation(a.dtype) && is_activation(b.dtype), "dtypes {} and {}", name_of(a.dtype), name_of(b.dtype));
  }
}

void check_same(std::initializer_list<Matrix> matrices) {
  check_same_shape(matrices);
  const DType first = matrices.begin()->dtype;
  for (const Matrix& m : matrices) ENSURE(m.dtype == first, "dtypes {} and {}", name_of(first), name_of(m.dtype));
}

void check_f32_row(const Matrix& v, int64_t n) {
  ENSURE(v && v.rows == 1 && v.cols == n && v.dtype == DType::f32, "[{}, {}] {} instead of f32 [1, {}]", v.rows, v.cols,
         name_of(v.dtype), n);
}

void check_embedding(const Matrix& table, const Matrix& rows) {
  ENSURE(table.cols == rows.cols, "a table of {} columns for rows of {}", table.cols, rows.cols);
  ENSURE(is_activation(table.dtype) && is_activation(rows.dtype));
}

void check_position(const Matrix& table, const Matrix& rows, int64_t seq_len) {
  check_embedding(table, rows);
  ENSURE(seq_len > 0 && seq_len <= table.rows, "T = {}, {} positions", seq_len, table.rows);
}

void check_norm(NormKind kind, const Matrix& x, const Matrix& y, const Matrix& weight, const Matrix& bias) {
  check_same({x, y});
  check_f32_row(weight, x.cols);
  if (bias) check_f32_row(bias, x.cols);
  ENSURE(kind == NormKind::layernorm || !bias, "an rmsnorm has no bias");
}

void check_product(const Matrix& left, int64_t inner, const Matrix& out, int64_t out_cols, DType packed) {
  ENSURE(left.cols == inner && out.cols == out_cols && left.rows == out.rows,
         "[{}, {}] times a weight [{} -> {}] into [{}, {}]", left.rows, left.cols, inner, out_cols, out.rows, out.cols);
  ENSURE(left.dtype == packed, "{} activations with a weight packed for {}", name_of(left.dtype), name_of(packed));
  ENSURE(out.dtype == packed || out.dtype == DType::f32);
}

void LinearForward::check() const {
  check_product(x, w->k, y, w->n, w->dtype);
  ENSURE(!bias || (bias.rows == 1 && bias.cols == w->n && (bias.dtype == DType::f32 || bias.dtype == x.dtype)),
         "a bias [{}, {}] {} instead of [1, {}]", bias.rows, bias.cols, name_of(bias.dtype), w->n);
}

void LinearBackwardWeight::check() const {
  ENSURE(dy.rows == x.rows && dw.rows == dy.cols && dw.cols == x.cols, "dy [{}, {}], x [{}, {}], dw [{}, {}]", dy.rows,
         dy.cols, x.rows, x.cols, dw.rows, dw.cols);
  ENSURE(dw.dtype == DType::f32 && dy.dtype == x.dtype && is_activation(x.dtype));
  if (dbias) check_f32_row(dbias, dy.cols);
}

void Rope::check() const {
  ENSURE(head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0 && seq_len > 0, "{} columns, head_dim {}, T {}",
         x.cols, head_dim, seq_len);
  ENSURE(turned() % 2 == 0 && rotary_begin >= 0 && rotary_begin + turned() <= head_dim,
         "{} of {} columns of a head turn, from {} on", turned(), head_dim, rotary_begin);
  ENSURE(is_activation(x.dtype));
}

void check_attention(const AttentionShape& s, const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& out) {
  ENSURE(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0, "{} heads, {} kv heads, head_dim {}", s.heads,
         s.kv_heads, s.head_dim);
  check_same({q, out});
  check_same({k, v});
  ENSURE(q.dtype == k.dtype);
  ENSURE(q.rows == s.batch * s.seq_len && k.rows == s.batch * s.keys_of_sequence() &&
             q.cols == s.heads * s.head_dim && k.cols == s.kv_heads * s.head_dim,
         "q [{}, {}], k [{}, {}] for B {}, T {}, H {}, G {}, D {}", q.rows, q.cols, k.rows, k.cols, s.batch, s.seq_len,
         s.heads, s.kv_heads, s.head_dim);
  ENSURE(s.mask.query_offset >= 0 && s.mask.query_offset + s.seq_len <= s.keys_of_sequence(),
         "queries {} to {} of {} keys", s.mask.query_offset, s.mask.query_offset + s.seq_len, s.keys_of_sequence());
  ENSURE(s.mask.cap >= 0 && s.mask.window >= 0, "a cap of {}, a window of {}", s.mask.cap, s.mask.window);
}

void check_documents(const AttentionShape& s) {
  if (!s.mask.first_key) return;
  for (int64_t m = 0; m < s.batch * s.seq_len; ++m) {
    const int32_t first = s.mask.first_key[m];
    ENSURE(first >= (m % s.seq_len == 0 ? 0 : s.mask.first_key[m - 1]),
           "row {} begins at key {}, after that of row {}", m - 1, s.mask.first_key[m - (m > 0)], m);
  }
}

OpShape attention_cost(std::string_view op, const AttentionShape& s) {
  // A query sees as many keys as the mean of all: of those behind others, these whole and half of its own.
  return {op, s.batch * s.seq_len, s.heads * s.head_dim, s.seq_len + 2 * s.mask.query_offset,
          s.has_window() ? s.mask.window : 0};
}

double attention_flops(const AttentionShape& s) {
  const OpShape cost = attention_cost("", s);
  if (cost.window == 0) return 2 * cost.volume();
  const int64_t before = s.mask.query_offset;
  const int64_t pairs =
      visible_pairs(before + s.seq_len, cost.window) - (before > 0 ? visible_pairs(before, cost.window) : 0);
  return 4 * double(s.batch) * double(pairs) * double(cost.n);
}

void ExpandKeys::check() const {
  ENSURE(heads > 0 && k.cols % heads == 0 && kv.cols % heads == 0, "{} and {} columns of {} heads", k.cols,
         kv.cols, heads);
  ENSURE(own_dim() >= 0 && value_dim() >= 0 && value_dim() <= head_dim(),
         "of {} channels of a head {} are its key's own, and {} its value's", head_dim(), own_dim(),
         value_dim());
  ENSURE(is_activation(k.dtype) && kv.dtype == k.dtype && shared.dtype == k.dtype);
  ENSURE(kv.rows == k.rows && shared.rows == k.rows, "{} and {} rows for {}", kv.rows, shared.rows, k.rows);
  check_same({k, v});
}

void HeadScalarBackward::check() const {
  check_same({left(), right()});
  ENSURE(head_dim > 0 && left().cols % head_dim == 0, "{} columns, head_dim {}", left().cols, head_dim);
  check_f32_row(values, heads());
  check_f32_row(dvalues, heads());
}

void Quantize::check() const {
  check_same({x, y});
  ENSURE(groups != Fp8Groups::blocks, "only a weight is in blocks");
  ENSURE(group > 0, "groups of {}", group);
  ENSURE(!offsets || (offsets.dtype == DType::i32 && offsets.rows == 1), "{} rows of offsets", offsets.rows);
}

void QuantizeWeight::check() const {
  check_same({w, result()});
  ENSURE(group > 0, "groups of {}", group);
  ENSURE(parts > 0 && w.rows % parts == 0, "{} rows of {} weights", w.rows, parts);
}

void QuantizeFp4::check() const {
  check_same({x, y});
  ENSURE(groups != Fp8Groups::whole, "an operand has groups below its own scale");
  ENSURE(parts > 0 && x.rows % parts == 0 && (parts == 1 || !offsets), "{} rows of {} weights", x.rows,
         parts);
  ENSURE(!offsets || (offsets.dtype == DType::i32 && offsets.rows == 1), "{} rows of offsets", offsets.rows);
  ENSURE(!mixes || groups == Fp8Groups::columns, "values are mixed along a sum over rows");
}

void check_logits(const Matrix& logits, float cap) {
  ENSURE(is_activation(logits.dtype) && logits.cols > 0);
  ENSURE(cap >= 0, "a cap of {}", cap);
}

void check_groups(const Matrix& x, int64_t group, int64_t count) {
  ENSURE(group > 0 && x.cols % group == 0 && count >= group, "{} columns in groups of {}, norms over {}",
         x.cols, group, count);
  ENSURE(is_activation(x.dtype));
}

void check_gate(bool clamps, float limit) { ENSURE(!clamps || limit > 0, "a gate clamped at {}", limit); }

OpShape shape_of_boxes(std::string_view op, std::span<const UpdateBox> boxes) {
  OpShape shape{op, int64_t(boxes.size())};
  for (const UpdateBox& box : boxes) shape.n += box.param.count();
  return shape;
}
double bytes_of_boxes(std::span<const UpdateBox> boxes, int moments) {
  double bytes = 0;  // the states are read and written, the gradient is read; the compute copy
  for (const UpdateBox& box : boxes)
    bytes +=
        double(box.param.count()) * ((box.master ? 8 : 0) + 2 * moments * bytes_of_moment(box.moments) + 4) +
        (box.master ? 1 : 2) * bytes_of({box.param});
  return bytes;
}
void check_boxes(std::span<const UpdateBox> boxes) {
  for (const UpdateBox& box : boxes) {
    const bool scaled = box.moments == Moments::int8;
    ENSURE((scaled && box.first_moment) == bool(box.first_scales) &&
               (scaled && box.second_moment) == bool(box.second_scales),
           "moments in {} and their scales", word_of(box.moments));
    ENSURE(is_activation(box.param.dtype) && box.grad_stride >= (box.param.rows > 1 ? box.param.cols : 0));
    ENSURE(box.master || box.param.dtype != DType::f16, "weights in f16 without master weights");
  }
}

void Balance::check() const {
  check_boxes(boxes);
  for (const UpdateBox& box : boxes) ENSURE(box.param.dtype == DType::f32 && box.master && !box.first_moment);
}

OpShape SumSquares::cost_shape() const {
  OpShape shape{kName, int64_t(boxes.size())};
  for (const Matrix& box : boxes) shape.n += box.count();
  return shape;
}
double SumSquares::bytes() const {
  double bytes = 0;
  for (const Matrix& box : boxes) bytes += bytes_of({box});
  return bytes;
}
void SumSquares::check() const {
  for (const Matrix& box : boxes) ENSURE(box.dtype == DType::f32);
}

OpShape Digest::cost_shape() const {
  OpShape shape{kName, int64_t(boxes.size())};
  for (const DigestBox& box : boxes) shape.n += box.data.count();
  return shape;
}
double Digest::bytes() const {
  double bytes = 0;
  for (const DigestBox& box : boxes) bytes += bytes_of({box.data});
  return bytes;
}
void Digest::check() const {
  for (const DigestBox& box : boxes) ENSURE(size_of(box.data.dtype) <= 4);
}

}  // namespace trainctl::kernels
