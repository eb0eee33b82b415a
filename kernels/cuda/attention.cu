// Attention, forward: a block takes a tile of queries of one head and walks over its keys up to the diagonal. Scores live in
// registers; a running maximum and sum per row give the softmax, and earlier sums are rescaled
// (FlashAttention-2, arXiv:2307.08691).
//
// Causal keys are walked upwards from key 0, which every query sees: after the first tile each row's maximum is finite, and no row needs a
// case without keys. With another mask they are walked from the first one that the first query sees, and maxima begin at a finite
// number or at the sink. Keys after the end of the sequence come after every existing query, so the causal
// mask hides them. Queries behind other keys are another mask, too: `at` is a query's position among the keys,
// `first` its row.
#include "kernels/cuda/attention_common.cuh"
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/attention_plain.cuh"
#include "kernels/cuda/attention_softmax.cuh"

namespace trainctl::kernels::cuda {

namespace {

// ---- tensor cores: 128 queries, tiles of 64 keys ------------------------------------------------------------------------------------

constexpr int kQueries = kForwardQueries, kKeys = kForwardKeys, kN = kKeys / 8;

/// 4 warps of 32 queries. With a mask 8 warps of 16, which have the registers that it needs.
template <bool kMasked>
struct Warps {
  static constexpr int kQueriesOfWarp = kMasked ? 16 : 32, kM = kQueriesOfWarp / 16;
  static constexpr int kThreads = kQueries / kQueriesOfWarp * kWarpSize, kBlocks = kMasked ? 1 : 2;
};

/// Shared memory: q [kQueries, kDim] and a ring of three tiles [kKeys, kDim] through which k0 v0 k1 v1 .. pass. At any time one of them is
/// multiplied, the next one has arrived or is arriving, and the one after it replaces the previous one.
template <int kDim, bool kAligned, bool kMasked>
__global__ void __launch_bounds__(Warps<kMasked>::kThreads, Warps<kMasked>::kBlocks) forward_kernel(ForwardArguments<bf16_t> a) {
  constexpr int kThreads = Warps<kMasked>::kThreads, kWarpQueries = Warps<kMasked>::kQueriesOfWarp, kM = Warps<kMasked>::kM;
  constexpr int kTile = kKeys * kDim, kRing = kForwardRing * kTile;
  bf16_t* const q = dynamic_shared<bf16_t>();
  bf16_t* const ring = q + kQueries * kDim;
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int first = (a.schedule.tiles - 1 - work.rank) * kQueries, head = work.head % a.heads;
  const int sequence = work.head / a.heads * a.seq_len, kv_col = head / a.group * kDim;
  const int warp_row = int(threadIdx.x) / kWarpSize * kWarpQueries;
  const int end = min(first + kQueries, a.seq_len);
  const int keys = kMasked ? a.mask.keys : a.seq_len;
  const int key_sequence = kMasked ? work.head / a.heads * keys : sequence;
  const int at = kMasked ? a.mask.offset + first : first, key_end = kMasked ? a.mask.offset + end : end;

  using Source = TileSource<kDim, kThreads>;
  Source(a.q, sequence + first, head * kDim).template load<kQueries, kAligned>(q, end - first);
  const SequenceMask mask = a.mask.of(sequence, a.seq_len);
  const int begin = kMasked ? mask.begin_of_keys(at) : 0;
  // From here to the diagonal each query of the warp sees each key.
  const int whole = kMasked ? mask.first_visible(at + warp_row + kWarpQueries - 1) : 0;
  Source k_source(a.k, key_sequence + begin, kv_col), v_source(a.v, key_sequence + begin, kv_col);
  k_source.template load<kKeys, kAligned>(ring, keys - begin);
  cp_async_commit();
  v_source.template load<kKeys, kAligned>(ring + kTile, keys - begin);
  cp_async_commit();
  float out[kM][kDim / 8][4];
  set_zero(out);
  RowState<kM> state;
  const HeadScores of_head{a.mask, head};
  if constexpr (kMasked) begin_masked_rows(state, of_head);
  else begin_rows(state);

  const int across = place_across<kDim>(), down = place_down<kDim>();
  const auto next = [](int slot) { return slot + kTile == kRing ? 0 : slot + kTile; };
  int slot = 0;   // of this k in the ring; v is in the next one
  for (int key = begin; key < key_end; key += kKeys) {
    const bool more = key + kKeys < key_end;
    cp_async_wait<1>();
    __syncthreads();
    if (more) k_source.template load<kKeys, kAligned>(ring + next(next(slot)), keys - key - kKeys);
    cp_async_commit();
    float scores[kM][kN][4];
    set_zero(scores);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t left[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) ldmatrix_x4(left[m], q + ((warp_row * kDim + down) ^ (16 * step)) + 16 * m * kDim);
      multiply_across<kDim, kM, kN>(scores, left, ring, slot + across, step);
    }
    if constexpr (kMasked) shape_scores(scores, of_head);
    if (key + kKeys > at + warp_row + 1) mask_scores(scores, at + warp_row - key);
    if (kMasked && key < whole) hide_early_keys(scores, mask, at + warp_row, key);
    uint32_t p[kM][kN / 2][4];
    softmax_step(p, scores, out, state, a.scale2);
    cp_async_wait<1>();
    __syncthreads();
    if (more) v_source.template load<kKeys, kAligned>(ring + slot, keys - key - kKeys);
    cp_async_commit();
    multiply_down<kDim, kM, kN / 2>(out, p, ring, next(slot) + down);
    slot = next(next(slot));
  }
  finish_rows<kDim, kAligned, kMasked>(a, out, state, q + warp_row * kDim, sequence + first + warp_row, head, end - first - warp_row);
}

// ---- everything else ----------------------------------------------------------------------------------------------------------------

/// Sum or maximum over the 16 threads that share a row.
__device__ inline float row_sum(float x) {
  for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}
__device__ inline float row_max(float x) {
  for (int offset = 8; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

/// Shared memory: tiles q, k, v and the scores.
template <typename T, typename P, bool kMasked>
__global__ void __launch_bounds__(kPlainThreads) plain_forward_kernel(ForwardArguments<T> a) {
  float* const q = dynamic_shared<float>();
  float* const k = q + P::kTileFloats;
  float *const v = k + P::kTileFloats, *const scores = v + P::kTileFloats;
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int first = (a.schedule.tiles - 1 - work.rank) * P::kTile, head = work.head % a.heads;
  const int64_t sequence = int64_t(work.head / a.heads) * a.seq_len;
  const int64_t q_col = int64_t(head) * a.head_dim, kv_col = int64_t(head / a.group) * a.head_dim;
  const int keys = kMasked ? a.mask.keys : a.seq_len, offset = kMasked ? a.mask.offset : 0;
  const int own = int(threadIdx.x) / 16 * P::kOwn, tx = int(threadIdx.x) % 16;
  const int end = min(first + P::kTile, a.seq_len), at = offset + first, key_end = offset + end;
  const int64_t key_sequence = kMasked ? int64_t(work.head / a.heads) * keys : sequence;

  P::load(q, a.q.at(sequence + first, q_col), a.q.stride, end - first, a.head_dim);
  typename P::Sums out;
  P::set_zero(out);
  float max[P::kOwn], sum[P::kOwn], factor[P::kOwn];
  const HeadScores of_head{a.mask, head};
#pragma unroll
  for (int r = 0; r < P::kOwn; ++r)
    max[r] = kMasked ? of_head.first_max(1.0f) : -INFINITY, sum[r] = kMasked && tx == 0 ? of_head.first_sum() : 0.0f;
  const SequenceMask mask = a.mask.of(sequence, a.seq_len);
  for (int key = kMasked ? mask.begin_of_keys(at) : 0; key < key_end; key += P::kTile) {
    __syncthreads();
    P::load(k, a.k.at(key_sequence + key, kv_col), a.k.stride, keys - key, a.head_dim);
    P::load(v, a.v.at(key_sequence + key, kv_col), a.v.stride, keys - key, a.head_dim);
    __syncthreads();
    typename P::Scores s;
    P::multiply_rows(s, q, k, a.head_dim);
#pragma unroll
    for (int r = 0; r < P::kOwn; ++r) {
      const int seen_from = kMasked ? mask.first_visible(at + own + r) : 0;
      float highest = max[r];
#pragma unroll
      for (int j = 0; j < P::kOwn; ++j) {
        s[r][j] = key + tx + 16 * j > at + own + r ? -INFINITY : s[r][j] * a.scale;
        if constexpr (kMasked) {
          if (s[r][j] > -INFINITY) of_head.shape(s[r][j]);
          if (key + tx + 16 * j < seen_from) s[r][j] = -INFINITY;
        }
        highest = fmaxf(highest, s[r][j]);
      }
      highest = row_max(highest);
      const float rescale = fast_exp2((max[r] - highest) * kLog2E);
      max[r] = highest;
      sum[r] *= rescale;
#pragma unroll
      for (int j = 0; j < P::kOwn; ++j) {
        s[r][j] = fast_exp2((s[r][j] - highest) * kLog2E);
        sum[r] += s[r][j];
      }
#pragma unroll
      for (int c = 0; c < P::kColumns; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[r][c][e] *= rescale;
      }
    }
    P::store_scores(scores, s);
    __syncthreads();
    P::multiply_scores(out, scores, v);
  }
  const int64_t rows = kMasked ? int64_t(work.head / a.heads) * a.seq_len : sequence;   // a mask needs its register
#pragma unroll
  for (int r = 0; r < P::kOwn; ++r) {
    const float total = row_sum(sum[r]);
    factor[r] = kMasked && total == 0.0f ? 0.0f : 1.0f / total;
    if (tx == 0 && first + own + r < end) a.lse[(rows + first + own + r) * a.heads + head] = max[r] + logf(total);
  }
  P::store(out, factor, a.out.at(rows + first, q_col), a.out.stride, end - first, a.head_dim);
}

template <typename T>
ForwardArguments<T> arguments_of(const AttentionShape& s, const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& out,
                                 float* lse, int64_t tile, int64_t rows_at_once) {
  const int64_t bytes_per_head = 2 * s.keys_of_sequence() * s.head_dim * int64_t(sizeof(T)) * s.kv_heads / s.heads;
  const auto in = [&](const Matrix& m) { return heads_of<const T>(m, rows_at_once); };
  return {in(q), in(k), in(v), heads_of<T>(out, 0), lse,
          Schedule(div_up(s.seq_len, tile), s.batch * s.heads, bytes_per_head),
          int(s.seq_len), int(s.heads), int(s.heads / s.kv_heads), int(s.head_dim), s.scale, s.scale * kLog2E, DeviceMask(s)};
}

template <int kDim, bool kMasked>
void forward_on_tensor_cores(const Queue& queue, const AttentionForward& op, bool aligned) {
  constexpr size_t kBytes = tensor_forward_bytes(kDim);
  constexpr int kThreads = Warps<kMasked>::kThreads;
  static_assert(kBytes <= kLeastSharedBytes);
  const auto a = arguments_of<bf16_t>(op.shape, op.q, op.k, op.v, op.out, op.lse, kQueries, TileSource<kDim, kThreads>::kRowsAtOnce);
  launch(queue, "attention_forward", aligned ? forward_kernel<kDim, true, kMasked> : forward_kernel<kDim, false, kMasked>,
         a.schedule.blocks(), kThreads, kBytes, a);
}

template <int kDim>
void forward_on_tensor_cores(const Queue& queue, const AttentionForward& op) {
  const bool aligned = is_vectorizable(op.q) && is_vectorizable(op.k) && is_vectorizable(op.v) && is_vectorizable(op.out);
  if (aligned && fits_warpgroups(op.shape, queue.compute)) {
    constexpr auto kPass = WarpgroupPass::forward;
    hopper_forward(queue, kDim,
                   arguments_of<bf16_t>(op.shape, op.q, op.k, op.v, op.out, op.lse, warpgroup_rows(kPass, kDim),
                                        warpgroup_rows_at_once(kPass, kDim)));
  } else if (op.shape.is_causal()) {
    forward_on_tensor_cores<kDim, false>(queue, op, aligned);
  } else {
    forward_on_tensor_cores<kDim, true>(queue, op, aligned);
  }
}

template <typename T>
void forward_plainly(const Queue& queue, const AttentionForward& op) {
  with_plain<PlainPass::forward>(op.shape.head_dim, queue.most_shared_bytes, [&](auto plain) {
    using P = decltype(plain);
    const auto a = arguments_of<T>(op.shape, op.q, op.k, op.v, op.out, op.lse, P::kTile, 0);
    launch(queue, "attention_forward",
           op.shape.is_causal() ? plain_forward_kernel<T, P, false> : plain_forward_kernel<T, P, true>, a.schedule.blocks(),
           kPlainThreads, plain_bytes(PlainPass::forward, P::kDims, P::kTile), a);
  });
}

}  // namespace

void enqueue(const Queue& queue, const AttentionForward& op) {
  if (op.q.rows == 0) return;
  if (fits_tensor_cores(op.shape, op.q.dtype)) {
    op.shape.head_dim == 64 ? forward_on_tensor_cores<64>(queue, op) : forward_on_tensor_cores<128>(queue, op);
  } else if (op.q.dtype == DType::f32) {
    forward_plainly<float>(queue, op);
  } else {
    forward_plainly<bf16_t>(queue, op);
  }
}

}  // namespace trainctl::kernels::cuda
