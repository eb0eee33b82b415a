#include "runtime/model/block.h"

#include <cmath>

namespace trainctl {

using kernels::Matrix;

kernels::AttentionShape BlockShape::attention() const {
  return {micro_sequences, seq_len, heads, kv_heads, head_dim, float(1.0 / std::sqrt(double(head_dim)))};
}

BlockShape block_shape(const JobSpec& job) {
  BlockShape s;
  const int tp = job.parallelism.tensor;
  s.family = job.model.family;
  s.compute = job.compute;
  s.micro_sequences = job.batch.micro_sequences;
  s.seq_len = job.data.seq_len;
  s.hidden = job.model.hidden_size;
  s.heads = job.model.num_heads / tp;
  s.kv_heads = job.model.num_kv_heads / tp;
  s.head_dim = job.model.head_dim();
  s.ffn = job.model.ffn_size / tp;
  s.rows = s.micro_sequences * s.seq_len;
  s.local_rows = job.parallelism.sequence_parallel && tp > 1 ? s.rows / tp : s.rows;
  s.norm_eps = float(job.model.norm_eps);
  s.recompute = job.recompute;
  return s;
}

void BlockActivations::take_cheap(Arena& arena, const BlockShape& s) {
  norm1 = arena.take(s.compute, s.rows, s.hidden);
  norm2 = arena.take(s.compute, s.rows, s.hidden);
  if (s.gated()) act = arena.take(s.compute, s.rows, s.ffn);
}

void BlockActivations::take_rest(Arena& arena, const BlockShape& s) {
  if (s.recompute != Recompute::selective) take_cheap(arena, s);
  if (!s.gated()) act = arena.take(s.compute, s.rows, s.ffn);
  qkv = arena.take(s.compute, s.rows, s.qkv_cols());
  attention = arena.take(s.compute, s.rows, s.heads * s.head_dim);
  mid = arena.take(s.compute, s.local_rows, s.hidden);
  up = arena.take(s.compute, s.rows, s.up_cols());
  stats1 = arena.take(DType::f32, s.local_rows, 2).as<float>();
  lse = arena.take(DType::f32, s.rows, s.heads).as<float>();
  stats2 = arena.take(DType::f32, s.local_rows, 2).as<float>();
}

void BlockGradients::take(Arena& arena, const BlockShape& s, bool split) {
  out = arena.take(s.compute, s.rows, s.hidden);
  up = arena.take(s.compute, s.rows, s.up_cols());
  mid = arena.take(s.compute, s.rows, s.hidden);
  qkv = arena.take(s.compute, s.rows, s.qkv_cols());
  if (!split) return;
  for (Matrix* m : {&norm1_weight, &norm1_bias, &norm2_weight, &norm2_bias}) *m = arena.take(DType::f32, 1, s.hidden);
}

void BlockBiases::take(Arena& arena, const BlockShape& s) {
  if (s.gated() || s.compute == DType::f32) return;   // a gated family has none; f32 ones are as they should be
  qkv = arena.take(s.compute, 1, s.qkv_cols());
  proj = arena.take(s.compute, 1, s.hidden);
  up = arena.take(s.compute, 1, s.up_cols());
  down = arena.take(s.compute, 1, s.hidden);
}

void BlockScratch::take(Arena& arena, const BlockShape& s) {
  partial = arena.take(s.compute, s.rows, s.hidden);
  local = arena.take(s.compute, s.local_rows, s.hidden);
  normed = arena.take(s.compute, s.local_rows, s.hidden);
  if (s.gated()) act = arena.take(s.compute, s.rows, s.ffn);
  attention = arena.take(s.compute, s.rows, s.heads * s.head_dim);
}

Matrix vector_weight(const parallel::ShardedParams& params, int use) {
  if (use < 0) return {};
  const Matrix m = params.weight(use);
  return kernels::vector(m.data, m.dtype, m.count());
}
Matrix vector_gradient(const parallel::ShardedParams& params, int use, int lane) {
  if (use < 0) return {};
  const Matrix m = params.gradient(use, lane);
  return kernels::vector(m.data, m.dtype, m.count());
}

void accumulate(const BlockContext& c, Matrix src, Matrix dst, bool overwrite) {
  if (!src || !dst) return;
  if (overwrite)
    c.backend.copy(c.stream, src, dst);
  else
    c.backend.add(c.stream, src, dst);
}

namespace {

/// Joined uses as one matrix of `rows` rows.
Matrix joined(Matrix first, int64_t rows) { return kernels::matrix(first.data, first.dtype, rows, first.cols); }

}  // namespace

Block::Block(const BlockUses& uses, const BlockContext& c, const BlockBiases& biases) : uses_(uses) {
  const BlockShape& s = c.shape;
  if (c.backend.bias_dtype(s.compute) == s.compute) biases_ = biases;
  qkv_ = c.backend.make_packed(s.qkv_cols(), s.hidden, s.compute);
  proj_ = c.backend.make_packed(s.hidden, s.heads * s.head_dim, s.compute);
  up_ = c.backend.make_packed(s.up_cols(), s.hidden, s.compute);
  down_ = c.backend.make_packed(s.hidden, s.ffn, s.compute);
}

void Block::pack(const BlockContext& c) {
  c.backend.pack(c.stream, joined(c.params.weight(uses_.qkv), c.shape.qkv_cols()), *qkv_);
  c.backend.pack(c.stream, c.params.weight(uses_.proj), *proj_);
  c.backend.pack(c.stream, joined(c.params.weight(uses_.up), c.shape.up_cols()), *up_);
  c.backend.pack(c.stream, c.params.weight(uses_.down), *down_);
  const auto convert = [&](int use, const Matrix& to) {
    if (use >= 0 && to) c.backend.copy(c.stream, vector_weight(c.params, use), to);
  };
  convert(uses_.qkv_bias, biases_.qkv);
  convert(uses_.proj_bias, biases_.proj);
  convert(uses_.up_bias, biases_.up);
  convert(uses_.down_bias, biases_.down);
}

Matrix Block::bias(const BlockContext& c, int use, const Matrix& converted) const {
  return use >= 0 && converted ? converted : vector_weight(c.params, use);
}
Matrix Block::bias_once(const BlockContext& c, int use, const Matrix& converted) const {
  return c.tp.rank() == 0 ? bias(c, use, converted) : Matrix{};
}

void Block::normalise(const BlockContext& c, Matrix x, Matrix delta, int weight, int bias, Matrix sum, Matrix out,
                      float* stats) {
  const Matrix y = c.tp.cuts_rows() ? c.scratch.normed : out;
  c.backend.norm_forward(c.stream, c.shape.norm(), x, delta, vector_weight(c.params, weight),
                         vector_weight(c.params, bias), c.shape.norm_eps, sum, y, stats);
  c.tp.enter(y, out);
}

void Block::forward_until_act(const BlockContext& c, BlockActivations& a, Matrix previous, Matrix delta) {
  const BlockShape& s = c.shape;
  normalise(c, delta ? previous : a.x, delta, uses_.norm1_weight, uses_.norm1_bias, a.x, a.norm1, a.stats1);
  c.backend.linear_forward(c.stream, a.norm1, *qkv_, bias(c, uses_.qkv_bias, biases_.qkv), a.qkv);
  const int64_t q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim;
  const Matrix mq = a.qkv.columns(0, q), mk = a.qkv.columns(q, k), mv = a.qkv.columns(q + k, k);
  if (c.cos_sin) {
    c.backend.rope(c.stream, mq, s.head_dim, s.seq_len, c.cos_sin, false);
    c.backend.rope(c.stream, mk, s.head_dim, s.seq_len, c.cos_sin, false);
  }
  c.backend.attention_forward(c.stream, s.attention(), mq, mk, mv, a.attention, a.lse);
  c.backend.linear_forward(c.stream, a.attention, *proj_, bias_once(c, uses_.proj_bias, biases_.proj),
                           c.scratch.partial);
  const Matrix out = c.tp.leave(c.scratch.partial, c.scratch.local);
  normalise(c, a.x, out, uses_.norm2_weight, uses_.norm2_bias, a.mid, a.norm2, a.stats2);
  const Matrix up_bias = bias(c, uses_.up_bias, biases_.up);
  if (!s.gated()) {
    c.backend.linear_gelu_forward(c.stream, a.norm2, *up_, up_bias, a.up, a.act);
    return;
  }
  c.backend.linear_forward(c.stream, a.norm2, *up_, up_bias, a.up);
  c.backend.swiglu_forward(c.stream, a.up.columns(0, s.ffn), a.up.columns(s.ffn, s.ffn), a.act);
}

void Block::recompute_cheap(const BlockContext& c, BlockActivations& a) {
  const BlockShape& s = c.shape;
  const auto norm = [&](Matrix x, const float* stats, int weight, int bias, Matrix out) {
    const Matrix y = c.tp.cuts_rows() ? c.scratch.normed : out;
    c.backend.norm_apply(c.stream, s.norm(), x, stats, vector_weight(c.params, weight), vector_weight(c.params, bias), y);
    c.tp.enter(y, out);
  };
  norm(a.x, a.stats1, uses_.norm1_weight, uses_.norm1_bias, a.norm1);
  norm(a.mid, a.stats2, uses_.norm2_weight, uses_.norm2_bias, a.norm2);
  if (s.gated()) c.backend.swiglu_forward(c.stream, a.up.columns(0, s.ffn), a.up.columns(s.ffn, s.ffn), a.act);
}

Matrix Block::forward(const BlockContext& c, BlockActivations& a, Matrix previous, Matrix delta) {
  forward_until_act(c, a, previous, delta);
  c.backend.linear_forward(c.stream, a.act, *down_, bias_once(c, uses_.down_bias, biases_.down), c.scratch.partial);
  return c.tp.leave(c.scratch.partial, c.scratch.local);
}

void Block::recompute(const BlockContext& c, BlockActivations& a) { forward_until_act(c, a, {}, {}); }

void Block::backward_input(const BlockContext& c, const BlockActivations& a, BlockGradients& g, Matrix dout, Matrix din, int lane,
                           bool first) {
  const BlockShape& s = c.shape;
  // Until a later weight half runs, the lane's own gradients may still hold those of an earlier lane.
  const auto norm_gradient = [&](int use, const Matrix& waiting) {
    return c.weight_half_follows ? vector_gradient(c.params, use, lane) : use < 0 ? Matrix{} : waiting;
  };
  const auto norm_backward = [&](Matrix dy, Matrix x, const float* stats, Matrix dresidual, Matrix dx, int weight, const Matrix& dweight,
                                 int bias, const Matrix& dbias) {
    c.backend.norm_backward(c.stream, s.norm(), dy, x, vector_weight(c.params, weight), stats, dresidual, dx,
                            norm_gradient(weight, dweight), norm_gradient(bias, dbias), c.weight_half_follows && !first);
  };

  if (c.tp.cuts_rows())
    c.tp.enter(dout, g.out);
  else if (c.weight_half_follows)
    g.out = dout;
  else
    c.backend.copy(c.stream, dout, g.out);
  if (s.gated()) {
    c.backend.linear_backward_input(c.stream, g.out, *down_, c.scratch.act);
    c.backend.swiglu_backward(c.stream, a.up.columns(0, s.ffn), a.up.columns(s.ffn, s.ffn), c.scratch.act,
                              g.up.columns(0, s.ffn), g.up.columns(s.ffn, s.ffn));
  } else {
    c.backend.linear_gelu_backward_input(c.stream, g.out, *down_, a.up, g.up);
  }
  c.backend.linear_backward_input(c.stream, g.up, *up_, c.scratch.partial);
  const Matrix dnorm2 = c.tp.leave(c.scratch.partial, c.scratch.local);
  const Matrix dmid = c.tp.cuts_rows() ? din : g.mid;
  norm_backward(dnorm2, a.mid, a.stats2, dout, dmid, uses_.norm2_weight, g.norm2_weight, uses_.norm2_bias, g.norm2_bias);

  c.tp.enter(dmid, g.mid);
  c.backend.linear_backward_input(c.stream, g.mid, *proj_, c.scratch.attention);
  const int64_t q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim;
  const Matrix dq = g.qkv.columns(0, q), dk = g.qkv.columns(q, k), dv = g.qkv.columns(q + k, k);
  c.backend.attention_backward(c.stream, s.attention(), a.qkv.columns(0, q), a.qkv.columns(q, k), a.qkv.columns(q + k, k),
                               a.attention, a.lse, c.scratch.attention, dq, dk, dv);
  if (c.cos_sin) {
    c.backend.rope(c.stream, dq, s.head_dim, s.seq_len, c.cos_sin, true);
    c.backend.rope(c.stream, dk, s.head_dim, s.seq_len, c.cos_sin, true);
  }
  c.backend.linear_backward_input(c.stream, g.qkv, *qkv_, c.scratch.partial);
  const Matrix dnorm1 = c.tp.leave(c.scratch.partial, c.scratch.local);
  norm_backward(dnorm1, a.x, a.stats1, dmid, din, uses_.norm1_weight, g.norm1_weight, uses_.norm1_bias, g.norm1_bias);
}

void Block::backward_weight(const BlockContext& c, const BlockActivations& a, const BlockGradients& g, int lane, bool first) {
  const BlockShape& s = c.shape;
  const auto product = [&](Matrix dy, Matrix x, int weight, int bias, int64_t rows) {
    c.backend.linear_backward_weight(c.stream, dy, x, joined(c.params.gradient(weight, lane), rows),
                                     vector_gradient(c.params, bias, lane), !first);
  };
  product(g.out, a.act, uses_.down, uses_.down_bias, s.hidden);
  product(g.up, a.norm2, uses_.up, uses_.up_bias, s.up_cols());
  product(g.mid, a.attention, uses_.proj, uses_.proj_bias, s.hidden);
  product(g.qkv, a.norm1, uses_.qkv, uses_.qkv_bias, s.qkv_cols());
  if (c.weight_half_follows) return;   // the input half made the norms' gradients
  accumulate(c, g.norm2_weight, vector_gradient(c.params, uses_.norm2_weight, lane), first);
  accumulate(c, g.norm2_bias, vector_gradient(c.params, uses_.norm2_bias, lane), first);
  accumulate(c, g.norm1_weight, vector_gradient(c.params, uses_.norm1_weight, lane), first);
  accumulate(c, g.norm1_bias, vector_gradient(c.params, uses_.norm1_bias, lane), first);
}

}  // namespace trainctl
