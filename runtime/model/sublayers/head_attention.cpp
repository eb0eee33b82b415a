#include "runtime/model/sublayers/head_attention.h"

#include "runtime/model/sublayers/cut_chunks.h"

namespace trainctl {
namespace {

using kernels::AttentionShape;
using kernels::Matrix;
using parallel::HeadExchange;

/// Columns of a rank's heads.
struct HeadColumns {
  int64_t q = 0, k = 0, heads = 0;
  int64_t qkv() const { return q + 2 * k; }
};
HeadColumns columns_of(const AttentionShape& s, int ranks) {
  return {s.heads * s.head_dim / ranks, s.kv_heads * s.head_dim / ranks, s.heads / ranks};
}

/// Parts of one tensor, one after another.
class Room {
 public:
  explicit Room(Matrix all) : all_(all) {}
  Matrix take(int64_t cols) {
    const int64_t begin = used_;
    used_ += all_.rows * cols;
    ENSURE(used_ <= all_.count(), "{} elements of {}", used_, all_.count());
    char* const data = static_cast<char*>(all_.data) + size_t(begin) * size_of(all_.dtype);
    return kernels::matrix(data, all_.dtype, all_.rows, cols);
  }

 private:
  Matrix all_;
  int64_t used_ = 0;
};

Matrix lse_matrix(const float* lse, int64_t rows, int64_t heads) {
  return kernels::matrix(const_cast<float*>(lse), DType::f32, rows, heads);
}

/// What the passes of one layer share.
struct HeadPass {
  const LayerContext& c;
  Tensors& t;
  const HeadAttention::Numbers& n;
  const AttentionShape& of_rows;
  const parallel::SequenceCut all = c.cp->cut().of_one_rank();
  const int ranks = c.cp->cut().ranks;
  const HeadColumns cols = columns_of(of_rows, ranks);
  Room room{t[size_t(n.room)]};

  Matrix heads() const { return t[size_t(n.heads)]; }
  Matrix q() const { return heads().columns(0, cols.q); }
  Matrix k() const { return heads().columns(cols.q, cols.k); }
  Matrix v() const { return heads().columns(cols.q + cols.k, cols.k); }
  Matrix out() const { return t[size_t(n.out)]; }
  Matrix lse() const { return t[size_t(n.lse)]; }
  HeadExchange of_inputs(Matrix q_rows, Matrix k_rows, Matrix v_rows) {
    return {{q_rows, k_rows, v_rows}, heads(), room.take(cols.qkv())};
  }
  HeadExchange of_output(Matrix rows) { return {{rows}, out(), room.take(cols.q)}; }
  HeadExchange of_lse(const float* rows) const {
    return {{lse_matrix(rows, c.shape.rows, of_rows.heads)}, lse(), t[size_t(n.lse_room)]};
  }

  /// Returns the shape of attention to this rank's heads, whose mask is of all rows from now on.
  AttentionShape exchange(const std::vector<HeadExchange>& exchanges) const {
    AttentionShape s = of_rows;
    s.heads /= ranks, s.kv_heads /= ranks;
    for (const float*& scalar : s.mask.scalars.values)
      if (scalar) scalar += c.cp->cut().rank * s.heads;
    const Matrix keys = t[size_t(n.first_keys)];
    c.cp->to_heads(exchanges, s.mask.first_key, keys.as<int32_t>());
    if (!s.mask.first_key) return s;
    s.mask.first_key = keys.as<int32_t>();
    if (c.rehearses && *c.rehearses)  // nothing came, and attention looks where these say
      c.backend.run(c.stream, kernels::FillZero{keys.data, size_t(keys.count()) * sizeof(int32_t)});
    return s;
  }
};

}  // namespace

void HeadAttention::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                            const AttentionShape& on_rank, bool keeps) {
  const int64_t tokens = s.micro_sequences * s.seq_len;
  const HeadColumns cols = columns_of(on_rank, s.cut.ranks);
  const Life life = keeps ? Life::activation : Life::scratch;
  list.push_back({n.heads, life, s.compute, tokens, cols.qkv()});
  list.push_back({n.out, life, s.compute, tokens, cols.q});
  list.push_back({n.lse, life, DType::f32, tokens, cols.heads});
  list.push_back({n.first_keys, Life::scratch, DType::i32, tokens, 1});
  list.push_back({n.gradient, Life::scratch, s.compute, tokens, cols.qkv()});
  list.push_back({n.out_gradient, Life::scratch, s.compute, tokens, cols.q});
  list.push_back({n.room, Life::scratch, s.compute, tokens, cols.qkv() + (keeps ? 0 : 2 * cols.q)});
  list.push_back({n.lse_room, Life::scratch, DType::f32, tokens, cols.heads});
}

void HeadAttention::forward(const LayerContext& c, Tensors& t, const Numbers& n, const Ordered& ordered,
                            bool keeps, const kernels::AttentionForward& op) {
  HeadPass pass{c, t, n, op.shape};
  const AttentionShape shape = pass.exchange({pass.of_inputs(op.q, op.k, op.v)});
  c.cp->order(pass.heads().columns(pass.cols.q, 2 * pass.cols.k), ordered.all);
  forward_chunks(c, pass.all, ordered.all,
                 {.shape = shape,
                  .q = pass.q(),
                  .k = pass.k(),
                  .v = pass.v(),
                  .out = pass.out(),
                  .lse = pass.lse().as<float>()});
  pass.room = Room(t[size_t(n.room)]);
  std::vector<HeadExchange> back = {pass.of_output(op.out)};
  if (!keeps || op.shape.mask.scalars.any()) back.push_back(pass.of_lse(op.lse));
  c.cp->to_rows(back);
}

void HeadAttention::backward(const LayerContext& c, Tensors& t, const Numbers& n, const Ordered& ordered,
                             bool keeps, const kernels::AttentionBackward& op) {
  HeadPass pass{c, t, n, op.shape};
  const Matrix dout = t[size_t(n.out_gradient)], d = t[size_t(n.gradient)];
  std::vector<HeadExchange> exchanges = {{{op.dout}, dout, pass.room.take(pass.cols.q)}};
  if (!keeps) {
    exchanges.push_back(pass.of_inputs(op.q, op.k, op.v));
    exchanges.push_back(pass.of_output(op.out));
    exchanges.push_back(pass.of_lse(op.lse));
  }
  const AttentionShape shape = pass.exchange(exchanges);
  const int64_t q = pass.cols.q, k = pass.cols.k;
  c.cp->order(pass.heads().columns(q, 2 * k), ordered.all);
  backward_chunks(c, pass.all, ordered.all, ordered.of_blocks, ordered.of_chunk,
                  {.shape = shape,
                   .q = pass.q(),
                   .k = pass.k(),
                   .v = pass.v(),
                   .out = pass.out(),
                   .lse = pass.lse().as<float>(),
                   .dout = dout,
                   .dq = d.columns(0, q),
                   .dk = d.columns(q, k),
                   .dv = d.columns(q + k, k)});
  c.cp->add_all(ordered.of_blocks, d.columns(q, 2 * k));
  pass.room = Room(t[size_t(n.room)]);
  c.cp->to_rows(std::vector<HeadExchange>{{{op.dq, op.dk, op.dv}, d, pass.room.take(pass.cols.qkv())}});
}

}  // namespace trainctl
