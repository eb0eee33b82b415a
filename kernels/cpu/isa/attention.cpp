// Attention in blocks of kQueryBlock queries by kKeyBlock keys (FlashAttention-2, arXiv:2307.08691). Scores are held
// transposed, [key, query], so that the lanes of a vector are queries: the maximum, the sum and the exponentials need no
// shuffles, keys and values are read in place, and only the queries' side is transposed, once per block.
#include <cmath>

#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/small_product.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

constexpr int64_t kQueryVectors = kQueryBlock / kLanes;
constexpr int64_t kScores = kKeyBlock * kQueryBlock;

TRAINCTL_INLINE int64_t padded(int64_t d) { return (d + kLanes - 1) / kLanes * kLanes; }
TRAINCTL_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Rows of f32 with whole vectors of columns.
struct Rows {
  const float* data;
  int64_t stride;
};

/// m[first.., column..] as f32, n rows of head_dim columns padded by zeros: in place where it already is that.
Rows rows_of(const Matrix& m, int64_t first, int64_t n, int64_t column, int64_t head_dim, float* room) {
  if (m.dtype == DType::f32 && head_dim % kLanes == 0) {
    return {row<float>(m, first) + column, m.stride};
  }
  const int64_t stride = padded(head_dim);
  with_type(m.dtype, [&](auto t) {
    for (int64_t r = 0; r < n; ++r) {
      const auto* from = row<decltype(t)>(m, first + r) + column;
      for_lanes(head_dim,
                [&](int64_t c, auto lanes) { store(room + r * stride + c, load(from + c, lanes), Full{}); });
    }
  });
  return {room, stride};
}

/// out[d, r] = m[r, d], [head_dim, kQueryBlock], zeros where r >= n.
void transpose(Rows m, int64_t n, int64_t head_dim, float* out) {
  for (int64_t d = 0; d < head_dim; ++d) {
    float* to = out + d * kQueryBlock;
    for (int64_t r = 0; r < kQueryBlock; ++r) {
      to[r] = r < n ? m.data[r * m.stride + d] : 0.0f;
    }
  }
}

void write_rows(const float* from, int64_t n, int64_t head_dim, const Matrix& m, int64_t first, int64_t column) {
  with_type(m.dtype, [&](auto t) {
    for (int64_t r = 0; r < n; ++r) {
      auto* to = row<decltype(t)>(m, first + r) + column;
      const float* source = from + r * padded(head_dim);
      for_lanes(head_dim, [&](int64_t c, auto lanes) { store(to + c, load(source + c, lanes), lanes); });
    }
  });
}

/// The mask of vector j: queries first_query + j * 16 .. against one key. True if the key is in the future.
TRAINCTL_INLINE VInt future(int64_t first_query, int64_t j, int64_t key) {
  return first_lanes(int32_t(key - first_query - j * kLanes));
}

/// The keys that a block of queries sees, and the cap of its scores. A causal block has neither `first` nor cap.
struct BlockMask {
  alignas(
      64) int32_t first[kQueryBlock];  ///< the first key of each query; those of a sequence never decrease
  int64_t begin = 0;  ///< the first key of all; at most the block's first query, so that each block has keys
  int64_t whole = 0;  ///< from here to the first query each query sees each key
  float cap = 0;
};

/// first_row: of the block in the batch. position: of its first query among the keys of its sequence.
void make_mask(const AttentionShape& s, int64_t first_row, int64_t position, int64_t queries,
               BlockMask& mask) {
  for (int64_t r = 0; r < kQueryBlock; ++r) {
    mask.first[r] = r < queries ? int32_t(first_visible_key(s.mask, first_row + r, position + r)) : 0;
  }
  mask.begin = smaller(mask.first[0] > 0 ? mask.first[0] : 0, position);
  mask.whole = mask.first[queries - 1];
  mask.cap = s.mask.cap;
}

/// Where a running maximum begins if a row may see none of the first keys: a finite number, because
/// -infinity - -infinity is NaN.
constexpr float kLowest = -1e30f;

/// Running maximum and sum of exponentials of a block of queries.
struct Softmax {
  V max[kQueryVectors], sum[kQueryVectors];
};

/// scores [keys, kQueryBlock] -> exp(scale * score - new maximum); `correction` gets exp(old maximum - new maximum).
/// Of the first `vectors` vectors of queries. kMasked: any mask; otherwise the causal one.
template <bool kMasked>
void softmax_block(float* scores, int64_t keys, int64_t vectors, float scale, int64_t first_query,
                   int64_t first_key, bool diagonal, const BlockMask& mask, Softmax& state,
                   float* correction) {
  const bool early = kMasked && first_key < mask.whole;
  const bool stored = kMasked || diagonal;
  for (int64_t j = 0; j < vectors; ++j) {
    V best = state.max[j];
    const VInt first = kMasked ? load(mask.first + j * kLanes) : VInt{};
    for (int64_t k = 0; k < keys; ++k) {
      float* p = scores + k * kQueryBlock + j * kLanes;
      V s = load(p, Full{}) * scale;
      if (kMasked && mask.cap > 0) s = hyperbolic_tangent(s / mask.cap) * mask.cap;
      if (diagonal) s = select(future(first_query, j, first_key + k), splat(-INFINITY), s);
      if (early) s = select(first > int32_t(first_key + k), splat(-INFINITY), s);
      if (stored) store(p, s, Full{});
      best = larger(best, s);
    }
    const V change = exponential(state.max[j] - best);
    V sum = state.sum[j] * change;
    for (int64_t k = 0; k < keys; ++k) {
      float* p = scores + k * kQueryBlock + j * kLanes;
      const V s = stored ? load(p, Full{}) : load(p, Full{}) * scale;
      const V e = exponential(s - best);
      store(p, e, Full{});
      sum += e;
    }
    state.max[j] = best;
    state.sum[j] = sum;
    store(correction + j * kLanes, change, Full{});
  }
}

void scale_rows(float* rows, int64_t n, int64_t stride, const float* factor) {
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < stride; c += kLanes) {
      store(rows + r * stride + c, load(rows + r * stride + c, Full{}) * factor[r], Full{});
    }
  }
}

}  // namespace

size_t attention_scratch_floats(const AttentionShape& s, bool backward) {
  const int64_t d = padded(s.head_dim);
  const int64_t block = kQueryBlock * d;
  if (!backward) {
    return size_t(5 * block + kScores + 2 * kQueryBlock);
  }
  return size_t(8 * block + 2 * kScores + 2 * kQueryBlock + 2 * s.keys_of_sequence() * d);
}

namespace {

template <bool kMasked>
void forward(const AttentionForward& op, const AttentionTask& task, float* scratch) {
  const AttentionShape& s = op.shape;
  const int64_t dim = s.head_dim, d = padded(dim), block = kQueryBlock * d;
  float *q_room = scratch, *q_transposed = q_room + block, *k_room = q_transposed + block, *v_room = k_room + block,
        *out = v_room + block, *scores = out + block, *correction = scores + kScores, *sums = correction + kQueryBlock;
  const int64_t first_row = task.batch * s.seq_len + task.first_query, q_column = task.head * dim;
  const int64_t first_key = task.batch * s.keys_of_sequence();
  const int64_t kv_column = task.head / (s.heads / s.kv_heads) * dim;
  const int64_t position = task.first_query + s.mask.query_offset, q_end = position + task.queries;
  const int64_t vectors = (task.queries + kLanes - 1) / kLanes;  // of a single query one, not all of a block
  transpose(rows_of(op.q, first_row, task.queries, q_column, dim, q_room), task.queries, dim, q_transposed);
  BlockMask mask;
  if constexpr (kMasked) make_mask(s, first_row, position, task.queries, mask);
  const float* const sinks = kMasked ? s.mask.scalars[HeadScalar::sinks] : nullptr;
  Softmax state;
  for (int64_t j = 0; j < kQueryVectors; ++j) {
    state.max[j] = splat(sinks ? sinks[task.head] : kMasked ? kLowest : -INFINITY);
    state.sum[j] = splat(sinks ? 1.0f : 0.0f);
  }
  for (int64_t key = mask.begin; key < q_end; key += kKeyBlock) {
    const int64_t keys = smaller(kKeyBlock, q_end - key);
    const Rows k = rows_of(op.k, first_key + key, keys, kv_column, dim, k_room);
    const Rows v = rows_of(op.v, first_key + key, keys, kv_column, dim, v_room);
    small_product(keys, vectors, dim, {k.data, k.stride, 1}, q_transposed, kQueryBlock, {scores, kQueryBlock},
                  false);
    softmax_block<kMasked>(scores, keys, vectors, s.scale, position, key, key + keys > position, mask, state,
                           correction);
    if (key > mask.begin) {
      scale_rows(out, task.queries, d, correction);
    }
    small_product(task.queries, d / kLanes, keys, {scores, 1, kQueryBlock}, v.data, v.stride, {out, d},
                  key > mask.begin);
  }
  float* max = correction;
  for (int64_t j = 0; j < kQueryVectors; ++j) {
    store(max + j * kLanes, state.max[j], Full{});
    store(sums + j * kLanes, state.sum[j], Full{});
  }
  for (int64_t r = 0; r < task.queries; ++r) {
    op.lse[(first_row + r) * s.heads + task.head] = max[r] + std::log(sums[r]);
    sums[r] = kMasked && sums[r] == 0 ? 0.0f : 1.0f / sums[r];  // 0: the query sees no key
  }
  scale_rows(out, task.queries, d, sums);
  write_rows(out, task.queries, dim, op.out, first_row, q_column);
}

/// Scratch of the backward pass of one key/value head.
struct BackwardRoom {
  float *q, *q_transposed, *dout, *dout_transposed, *out, *k, *v, *dq, *p, *ds, *lse, *delta, *dk, *dv;
};

BackwardRoom divide(float* scratch, int64_t d, int64_t all_keys) {
  const int64_t block = kQueryBlock * d;
  float* p = scratch + 8 * block;
  float* lse = p + 2 * kScores;
  float* dk = lse + 2 * kQueryBlock;
  return {scratch,
          scratch + block,
          scratch + 2 * block,
          scratch + 3 * block,
          scratch + 4 * block,
          scratch + 5 * block,
          scratch + 6 * block,
          scratch + 7 * block,
          p,
          p + kScores,
          lse,
          lse + kQueryBlock,
          dk,
          dk + all_keys * d};
}

/// scores -> P = exp(scale * score - lse); dP -> dS = P (dP - delta) scale.   Both [keys, kQueryBlock].
template <bool kMasked>
void score_gradients(const BackwardRoom& room, int64_t keys, float scale, int64_t first_query,
                     int64_t first_key, bool diagonal, const BlockMask& mask) {
  const bool early = kMasked && first_key < mask.whole;
  for (int64_t j = 0; j < kQueryVectors; ++j) {
    const V lse = load(room.lse + j * kLanes, Full{}), delta = load(room.delta + j * kLanes, Full{});
    const VInt first = kMasked ? load(mask.first + j * kLanes) : VInt{};
    for (int64_t k = 0; k < keys; ++k) {
      float *p = room.p + k * kQueryBlock + j * kLanes, *ds = room.ds + k * kQueryBlock + j * kLanes;
      V score = load(p, Full{}) * scale, slope;
      if (kMasked && mask.cap > 0) {
        const V tanh = hyperbolic_tangent(score / mask.cap);
        score = tanh * mask.cap;
        slope = splat(1.0f) - tanh * tanh;
      }
      V e = exponential(score - lse);
      if (diagonal) e = select(future(first_query, j, first_key + k), V{}, e);
      if (early) e = select(first > int32_t(first_key + k), V{}, e);
      store(p, e, Full{});
      V gradient = e * (load(ds, Full{}) - delta);
      if (kMasked && mask.cap > 0) gradient = gradient * slope;
      store(ds, gradient * scale, Full{});
    }
  }
}

/// One block of queries of one query head against all its visible keys.
template <bool kMasked>
void backward_queries(const AttentionBackward& op, const BackwardRoom& room, int64_t batch, int64_t head,
                      int64_t kv_column, int64_t first_query) {
  const AttentionShape& s = op.shape;
  const int64_t dim = s.head_dim, d = padded(dim), column = head * dim;
  const int64_t first = batch * s.seq_len, first_key = batch * s.keys_of_sequence();
  const int64_t queries = smaller(kQueryBlock, s.seq_len - first_query);
  const int64_t position = first_query + s.mask.query_offset, q_end = position + queries;
  const Rows q = rows_of(op.q, first + first_query, queries, column, dim, room.q);
  const Rows dout = rows_of(op.dout, first + first_query, queries, column, dim, room.dout);
  const Rows out = rows_of(op.out, first + first_query, queries, column, dim, room.out);
  transpose(q, queries, dim, room.q_transposed);
  transpose(dout, queries, dim, room.dout_transposed);
  for (int64_t r = 0; r < kQueryBlock; ++r) {
    V sum = {};
    for (int64_t c = 0; r < queries && c < d; c += kLanes) {
      sum = fma(load(out.data + r * out.stride + c, Full{}), load(dout.data + r * dout.stride + c, Full{}), sum);
    }
    room.delta[r] = lane_sum(sum);
    room.lse[r] = r < queries ? op.lse[(first + first_query + r) * s.heads + head] : 0.0f;
  }
  BlockMask mask;
  if constexpr (kMasked) make_mask(s, first + first_query, position, queries, mask);
  for (int64_t key = mask.begin; key < q_end; key += kKeyBlock) {
    const int64_t keys = smaller(kKeyBlock, q_end - key);
    const Rows k = rows_of(op.k, first_key + key, keys, kv_column, dim, room.k);
    const Rows v = rows_of(op.v, first_key + key, keys, kv_column, dim, room.v);
    small_product(keys, kQueryVectors, dim, {k.data, k.stride, 1}, room.q_transposed, kQueryBlock,
                  {room.p, kQueryBlock}, false);
    small_product(keys, kQueryVectors, dim, {v.data, v.stride, 1}, room.dout_transposed, kQueryBlock,
                  {room.ds, kQueryBlock}, false);
    score_gradients<kMasked>(room, keys, s.scale, position, key, key + keys > position, mask);
    small_product(keys, d / kLanes, queries, {room.p, kQueryBlock, 1}, dout.data, dout.stride,
                  {room.dv + key * d, d}, true);
    small_product(keys, d / kLanes, queries, {room.ds, kQueryBlock, 1}, q.data, q.stride, {room.dk + key * d, d},
                  true);
    small_product(queries, d / kLanes, keys, {room.ds, 1, kQueryBlock}, k.data, k.stride, {room.dq, d},
                  key > mask.begin);
  }
  write_rows(room.dq, queries, dim, op.dq, first + first_query, column);
}

}  // namespace

void attention_forward(const AttentionForward& op, const AttentionTask& task, float* scratch) {
  op.shape.sees_all_before() ? forward<false>(op, task, scratch) : forward<true>(op, task, scratch);
}

void attention_backward(const AttentionBackward& op, const AttentionTask& task, float* scratch) {
  const AttentionShape& s = op.shape;
  const int64_t dim = s.head_dim, d = padded(dim), group = s.heads / s.kv_heads;
  const auto queries_of = s.sees_all_before() ? backward_queries<false> : backward_queries<true>;
  const int64_t keys = s.keys_of_sequence(), kv_column = task.head * dim;
  const BackwardRoom room = divide(scratch, d, keys);
  std::memset(room.dk, 0, size_t(2 * keys * d) * sizeof(float));
  for (int64_t head = task.head * group; head < (task.head + 1) * group; ++head) {
    for (int64_t query = 0; query < s.seq_len; query += kQueryBlock) {
      queries_of(op, room, task.batch, head, kv_column, query);
    }
  }
  write_rows(room.dk, keys, dim, op.dk, task.batch * keys, kv_column);
  write_rows(room.dv, keys, dim, op.dv, task.batch * keys, kv_column);
}

namespace {

/// Of a row of HeadScalarBackward.
float row_factor(HeadScalar scalar, float value, float lse) {
  switch (scalar) {
    case HeadScalar::sinks: return -std::exp(value - lse);
  }
  return 0;
}

}  // namespace

void head_scalar_sums(const HeadScalarBackward& op, int64_t first, int64_t count, float* sums) {
  const int64_t heads = op.heads(), dim = op.head_dim;
  const auto* values = row<float>(op.values, 0);
  std::memset(sums, 0, size_t(heads) * sizeof(float));
  with_type(op.left().dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t m = first; m < first + count; ++m) {
      for (int64_t h = 0; h < heads; ++h) {
        const T *left = row<T>(op.left(), m) + h * dim, *right = row<T>(op.right(), m) + h * dim;
        V product = {};
        for_lanes(dim, [&](int64_t c, auto lanes) {
          product = fma(load(left + c, lanes), load(right + c, lanes), product);
        });
        sums[h] += row_factor(op.scalar, values[h], op.lse[m * heads + h]) * lane_sum(product);
      }
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
