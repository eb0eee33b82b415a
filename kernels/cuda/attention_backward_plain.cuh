// The gradients of attention without tensor cores: attention_backward.cu, which launches them, has the formulas.
#pragma once
#include "kernels/cuda/attention_plain.cuh"

namespace trainctl::kernels::cuda {

namespace {

/// P of one score; `lse` is not scaled. The difference is computed first, because it is exact unless P is
/// tiny.
__device__ inline float probability(float score, float lse, bool seen) {
  return seen ? fast_exp2((score - lse) * kLog2E) : 0.0f;
}

/// P of one score and its gradient, which comes as dP.
template <bool kMasked>
__device__ inline void score_gradient(float& p, float& ds, float scale, float lse, float delta, bool seen, const HeadScores& of) {
  float score = p * scale, slope = 1.0f;
  if constexpr (kMasked) slope = of.shape(score);
  p = probability(score, lse, seen);
  ds = p * (ds - delta);
  if constexpr (kMasked) ds *= slope;
}

template <typename T, typename P, bool kMasked>
__global__ void __launch_bounds__(kPlainThreads, 1) plain_key_gradient_kernel(BackwardArguments<T> a) {
  float* const k = dynamic_shared<float>();
  float *const v = k + P::kTileFloats, *const q = v + P::kTileFloats, *const dout = q + P::kTileFloats;
  float *const p_tile = dout + P::kTileFloats, *const ds_tile = p_tile + P::kScoreFloats;
  float *const lse = ds_tile + P::kScoreFloats, *const delta = lse + P::kTile;
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int kv_heads = a.heads / a.group, kv_head = work.head % kv_heads, batch = work.head / kv_heads;
  const int first = work.rank * P::kTile, kv_col = kv_head * a.head_dim;
  const int64_t sequence = int64_t(batch) * a.seq_len;
  const int keys = kMasked ? a.mask.keys : a.seq_len, offset = kMasked ? a.mask.offset : 0;
  const int64_t key_sequence = kMasked ? int64_t(batch) * keys : sequence;
  const int own = int(threadIdx.x) / 16 * P::kOwn, tx = int(threadIdx.x) % 16;
  P::load(k, a.k.at(key_sequence + first, kv_col), a.k.stride, keys - first, a.head_dim);
  P::load(v, a.v.at(key_sequence + first, kv_col), a.v.stride, keys - first, a.head_dim);
  typename P::Sums dk, dv;
  P::set_zero(dk);
  P::set_zero(dv);
  const SequenceMask mask = a.mask.of(sequence, a.seq_len);
  const int begin = kMasked ? mask.begin_of_queries(first, P::kTile) - offset : first;
  const int end = kMasked ? mask.end_of_queries(first, P::kTile) - offset : a.seq_len;
  for (int head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head) {
    const int64_t values = (int64_t(batch) * a.heads + head) * a.padded_len;
    for (int query = begin; query < end; query += P::kTile) {
      __syncthreads();
      P::load(q, a.q.at(sequence + query, int64_t(head) * a.head_dim), a.q.stride, a.seq_len - query, a.head_dim);
      P::load(dout, a.dout.at(sequence + query, int64_t(head) * a.head_dim), a.dout.stride, a.seq_len - query, a.head_dim);
      if (threadIdx.x < P::kTile) {
        lse[threadIdx.x] = a.lse[values + query + threadIdx.x];
        delta[threadIdx.x] = a.delta[values + query + threadIdx.x];
      }
      __syncthreads();
      typename P::Scores s, ds;
      P::multiply_rows(s, k, q, a.head_dim);
      P::multiply_rows(ds, v, dout, a.head_dim);
#pragma unroll
      for (int j = 0; j < P::kOwn; ++j) {
        const int column = tx + 16 * j, seen_from = kMasked ? mask.first_visible(offset + query + column) : 0;
#pragma unroll
        for (int r = 0; r < P::kOwn; ++r) {
          const int key = first + own + r;
          score_gradient<kMasked>(s[r][j], ds[r][j], a.scale, lse[column], delta[column],
                                  key <= offset + query + column && (!kMasked || key >= seen_from), {a.mask, head});
        }
      }
      P::store_scores(p_tile, s);
      P::store_scores(ds_tile, ds);
      __syncthreads();
      P::multiply_scores(dv, p_tile, dout);
      P::multiply_scores(dk, ds_tile, q);
    }
  }
  float factor[P::kOwn];
#pragma unroll
  for (int r = 0; r < P::kOwn; ++r) factor[r] = 1.0f;
  P::store(dv, factor, a.dv.at(key_sequence + first, kv_col), a.dv.stride, keys - first, a.head_dim);
#pragma unroll
  for (int r = 0; r < P::kOwn; ++r) factor[r] = a.scale;
  P::store(dk, factor, a.dk.at(key_sequence + first, kv_col), a.dk.stride, keys - first, a.head_dim);
}

template <typename T, typename P, bool kMasked>
__global__ void __launch_bounds__(kPlainThreads, 1) plain_query_gradient_kernel(BackwardArguments<T> a) {
  float* const k = dynamic_shared<float>();
  float *const v = k + P::kTileFloats, *const q = v + P::kTileFloats, *const dout = q + P::kTileFloats;
  float* const ds_tile = dout + P::kTileFloats;
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int head = work.head % a.heads, batch = work.head / a.heads;
  const int first = (a.schedule.tiles - 1 - work.rank) * P::kTile, end = min(first + P::kTile, a.seq_len);
  const int64_t sequence = int64_t(batch) * a.seq_len;
  const int keys = kMasked ? a.mask.keys : a.seq_len;
  const int64_t key_sequence = kMasked ? int64_t(batch) * keys : sequence;
  const int at = kMasked ? a.mask.offset + first : first, key_end = kMasked ? a.mask.offset + end : end;
  const int64_t q_col = int64_t(head) * a.head_dim, kv_col = int64_t(head / a.group) * a.head_dim;
  const int own = int(threadIdx.x) / 16 * P::kOwn, tx = int(threadIdx.x) % 16;
  P::load(q, a.q.at(sequence + first, q_col), a.q.stride, end - first, a.head_dim);
  P::load(dout, a.dout.at(sequence + first, q_col), a.dout.stride, end - first, a.head_dim);
  float lse[P::kOwn], delta[P::kOwn], factor[P::kOwn];
#pragma unroll
  for (int r = 0; r < P::kOwn; ++r) {
    const int64_t row = (int64_t(batch) * a.heads + head) * a.padded_len + first + own + r;
    lse[r] = a.lse[row];
    delta[r] = a.delta[row];
    factor[r] = a.scale;
  }
  typename P::Sums dq;
  P::set_zero(dq);
  const SequenceMask mask = a.mask.of(sequence, a.seq_len);
  for (int key = kMasked ? mask.begin_of_keys(at) : 0; key < key_end; key += P::kTile) {
    __syncthreads();
    P::load(k, a.k.at(key_sequence + key, kv_col), a.k.stride, keys - key, a.head_dim);
    P::load(v, a.v.at(key_sequence + key, kv_col), a.v.stride, keys - key, a.head_dim);
    __syncthreads();
    typename P::Scores s, ds;
    P::multiply_rows(s, q, k, a.head_dim);
    P::multiply_rows(ds, dout, v, a.head_dim);
#pragma unroll
    for (int r = 0; r < P::kOwn; ++r) {
      const int row = at + own + r, seen_from = kMasked ? mask.first_visible(row) : 0;
#pragma unroll
      for (int j = 0; j < P::kOwn; ++j) {
        const int column = key + tx + 16 * j;
        score_gradient<kMasked>(s[r][j], ds[r][j], a.scale, lse[r], delta[r],
                                column <= row && (!kMasked || column >= seen_from), {a.mask, head});
      }
    }
    P::store_scores(ds_tile, ds);
    __syncthreads();
    P::multiply_scores(dq, ds_tile, k);
  }
  P::store(dq, factor, a.dq.at(sequence + first, q_col), a.dq.stride, end - first, a.head_dim);
}

}  // namespace

}  // namespace trainctl::kernels::cuda
