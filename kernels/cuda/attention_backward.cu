// Gradients of attention, without atomics: every sum has one owner and one order. With P = exp(scale q k^T - lse), dP = dout v^T
// and dS = P * (dP - delta):  dv = P^T dout,  dk = scale dS^T q,  dq = scale dS k.
//
// Three kernels. The first turns lse and delta = sum_d out * dout into rows [B, H, T]. In the second a block owns keys and walks over
// the queries that see them, for every query head of the group in order; in the third a block owns queries and walks over their keys.
// The third recomputes P and dP: 7 products instead of 5, so that sums need neither atomics nor a buffer
// of partial sums.
//
// Both have the same loop: "rows" belong to a warp, in registers; "columns" are loaded in turn. Scores
// have the rows on the left, so that P and dS are already laid out as left factors of the products that
// follow, and never leave the registers.
#include "kernels/cuda/attention_backward_plain.cuh"
#include "kernels/cuda/attention_common.cuh"
#include "kernels/cuda/attention_delta.cuh"
#include "kernels/cuda/attention_hopper.cuh"

namespace trainctl::kernels::cuda {

namespace {

// ---- tensor cores -------------------------------------------------------------------------------------------------------------------
// A block owns 128 rows and passes 64 columns at a time (32 where shared memory is small) through two slots, the next ones arriving while
// the present ones are multiplied. With kDim = 64 four warps own 32 rows each, with kDim = 128 eight warps 16 each: in both cases two sums [rows, kDim] take 128
// registers. A warp takes its 64 columns in steps small enough for the rest.

// With a mask eight warps own 16 rows each, and fewer left factors stay in registers.

constexpr int kRows = kBackwardRows;

template <int kDimOfHead, int kPassing, bool kMasked>
struct Shape {
  static constexpr int kDim = kDimOfHead, kColumns = kPassing;
  static constexpr int kM = kDim == 64 && !kMasked ? 2 : 1;   ///< 16 rows each
  static constexpr int kWarpRows = 16 * kM, kThreads = kRows / kWarpRows * kWarpSize;
  static constexpr int kBlocks = kDim == 64 && !kMasked ? 2 : 1;   ///< per multiprocessor
  static constexpr int kSteps = kDim / 16;
  static constexpr int kOwnTile = kRows * kDim, kTile = kColumns * kDim;
  static constexpr size_t kBytes = tensor_backward_bytes(kDim, kColumns);
  using Source = TileSource<kDim, kThreads>;
  using Sums = float[kM][kDim / 8][4];
};

/// Left factors of a warp's rows for columns 16 k; `rows`: the warp's place (down) in its own tile.
template <typename S>
__device__ inline void load_left(uint32_t (&left)[S::kM][4], const bf16_t* tile, int rows, int k) {
#pragma unroll
  for (int m = 0; m < S::kM; ++m) ldmatrix_x4(left[m], tile + (rows ^ (16 * k)) + 16 * m * S::kDim);
}
template <typename S, int kHeld>
__device__ inline void load_left(uint32_t (&left)[kHeld][S::kM][4], const bf16_t* tile, int rows) {
#pragma unroll
  for (int k = 0; k < kHeld; ++k) load_left<S>(left[k], tile, rows, k);
}

/// kColumns floats of lse and of delta, four a thread.
template <int kColumns>
__device__ inline void load_row_values(float* slot, const float* lse, const float* delta) {
  constexpr int kChunks = kColumns / 4;
  const int thread = int(threadIdx.x), chunk = thread % kChunks;
  if (thread < 2 * kChunks) cp_async16(slot + thread * 4, (thread < kChunks ? lse : delta) + chunk * 4);
}

/// scores [16 kM, 8 kN] += rows times columns^T of q and k, and dp of dout and v, the columns at `place`, interleaved so that neither
/// waits for its own result. The part of the left factor of dp that does not fit into registers is read
/// again from `dp_rows`.
template <typename S, int kN, int kHeld>
__device__ inline void multiply_pair(float (&scores)[S::kM][kN][4], float (&dp)[S::kM][kN][4],
                                     const uint32_t (&left_scores)[S::kSteps][S::kM][4], const uint32_t (&left_dp)[kHeld][S::kM][4],
                                     const bf16_t* dp_rows, int rows, const bf16_t* slots, int place) {
#pragma unroll
  for (int k = 0; k < S::kSteps; ++k) {
    multiply_across<S::kDim, S::kM, kN>(scores, left_scores[k], slots, place, k);
    if (k < kHeld) {
      multiply_across<S::kDim, S::kM, kN>(dp, left_dp[k < kHeld ? k : 0], slots + S::kTile, place, k);
    } else {
      uint32_t left[S::kM][4];
      load_left<S>(left, dp_rows, rows, k);
      multiply_across<S::kDim, S::kM, kN>(dp, left, slots + S::kTile, place, k);
    }
  }
}

/// What a mask that is not causal makes of scores without their factor, and of dP - delta: caps both, and hides scores of keys that
/// their query no longer sees. Rows are keys from `key` on, columns queries from position `query` on.
template <int kM, int kN>
__device__ inline void mask_by_keys(float (&scores)[kM][kN][4], float (&ds)[kM][kN][4], const HeadScores& of, const SequenceMask& mask,
                                    int key, int query) {
  shape_with_slopes(scores, ds, of);
  if (mask.first_visible(query + 8 * kN - 1) <= key) return;   // the last query sees all of them
  const int lane = int(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int first = mask.first_visible(query + 8 * n + lane % 4 * 2 + e) - key;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        if (16 * m + lane / 4 < first) scores[m][n][e] = -INFINITY;
        if (16 * m + lane / 4 + 8 < first) scores[m][n][2 + e] = -INFINITY;
      }
    }
  }
}

/// Own rows: keys. Columns: q and dout of one query head after another.
template <int kDim, int kColumns, bool kAligned, bool kMasked>
__global__ void __launch_bounds__(Shape<kDim, kColumns, kMasked>::kThreads, Shape<kDim, kColumns, kMasked>::kBlocks)
    key_gradient_kernel(BackwardArguments<bf16_t> a) {
  using S = Shape<kDim, kColumns, kMasked>;
  constexpr int kN = 2, kHeld = kMasked ? 1 : S::kSteps - 2, kSlot = 2 * S::kTile;
  bf16_t* const own = dynamic_shared<bf16_t>();
  bf16_t* const slots = own + 2 * S::kOwnTile;
  float* const values = reinterpret_cast<float*>(slots + 2 * kSlot);   // per slot: lse, delta
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int kv_heads = a.heads / a.group, kv_head = work.head % kv_heads, batch = work.head / kv_heads;
  const int first = work.rank * kRows, sequence = batch * a.seq_len, lane = int(threadIdx.x) % kWarpSize;
  const int keys = kMasked ? a.mask.keys : a.seq_len, key_sequence = kMasked ? batch * keys : sequence;
  const int offset = kMasked ? a.mask.offset : 0;   // of queries: the position of their row 0
  const int warp_row = int(threadIdx.x) / kWarpSize * S::kWarpRows, warp_key = first + warp_row;
  const int down = place_down<kDim>(), across = place_across<kDim>();

  using Source = typename S::Source;
  Source(a.k, key_sequence + first, kv_head * kDim).template load<kRows, kAligned>(own, keys - first);
  Source(a.v, key_sequence + first, kv_head * kDim).template load<kRows, kAligned>(own + S::kOwnTile, keys - first);
  const auto load = [&](int head, int query, int slot) {
    Source(a.q, sequence + query, head * kDim).template load<kColumns, kAligned>(slots + slot, a.seq_len - query);
    Source(a.dout, sequence + query, head * kDim)
        .template load<kColumns, kAligned>(slots + slot + S::kTile, a.seq_len - query);
    const int64_t row = (int64_t(batch) * a.heads + head) * a.padded_len + query;
    load_row_values<kColumns>(values + slot / kDim, a.lse + row, a.delta + row);
  };
  const SequenceMask mask = a.mask.of(sequence, a.seq_len);
  const int end = kMasked ? mask.end_of_queries(first, kRows) - offset : a.seq_len;
  int begin = kMasked ? mask.begin_of_queries(first, kColumns) - offset : first;
  const bool unseen = kMasked && begin >= end;   // no query sees these keys: their gradients are zero
  if (unseen) begin = 0;
  int head = kv_head * a.group, query = begin, slot = 0;   // slot: its first element
  load(head, query, slot);
  if (unseen) head += a.group;
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  const int rows = warp_row * kDim + down;
  uint32_t k[S::kSteps][S::kM][4], v[kHeld][S::kM][4];
  load_left<S>(k, own, rows);
  load_left<S>(v, own + S::kOwnTile, rows);
  typename S::Sums dk, dv;
  set_zero(dk);
  set_zero(dv);

  for (; head < (kv_head + 1) * a.group; slot ^= kSlot) {
    const HeadScores of_head{a.mask, head};
    const int distance = offset + query - warp_key;   // of the first loaded query after the warp's first key
    query += kColumns;
    if (query >= end) query = begin, ++head;
    if (head < (kv_head + 1) * a.group) load(head, query, slot ^ kSlot);
    cp_async_commit();
#pragma unroll 1
    for (int step = 0; step < kColumns; step += 8 * kN) {
      if (distance + step + 8 * kN <= 0) continue;   // these queries see none of the warp's keys
      const int columns = slot + step * kDim;
      const float* const lse = values + slot / kDim + step + lane % 4 * 2;
      float p[S::kM][kN][4], ds[S::kM][kN][4];
      set_zero(p);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int m = 0; m < S::kM; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) ds[m][n][e] = -lse[kColumns + 8 * n + e % 2];
        }
      }
      multiply_pair<S, kN>(p, ds, k, v, own + S::kOwnTile, rows, slots, columns + across);
      if constexpr (kMasked) mask_by_keys(p, ds, of_head, mask, warp_key, warp_key + distance + step);
      const bool masked = distance + step < S::kWarpRows - 1;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int m = 0; m < S::kM; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = 16 * m + lane / 4 + 8 * (e / 2), at = distance + step + 8 * n + lane % 4 * 2 + e % 2;
            float x = fmaf(p[m][n][e], a.scale2, -lse[8 * n + e % 2]);
            if (masked && key > at) x = -INFINITY;
            p[m][n][e] = fast_exp2(x);
            ds[m][n][e] *= p[m][n][e];
          }
        }
      }
      uint32_t left[S::kM][kN / 2][4];
      round_to_left(left, p);
      multiply_down<kDim, S::kM, kN / 2>(dv, left, slots + S::kTile, columns + down);
      round_to_left(left, ds);
      multiply_down<kDim, S::kM, kN / 2>(dk, left, slots, columns + down);
    }
    cp_async_wait<0>();
    __syncthreads();
  }
  float factor[S::kM][2];
#pragma unroll
  for (int m = 0; m < S::kM; ++m) factor[m][0] = factor[m][1] = 1.0f;
  bf16_t* const staging = own + warp_row * kDim;
  store_rows<kDim, S::kM, kAligned>(dv, factor, staging, a.dv.at(key_sequence + warp_key, kv_head * kDim), a.dv.stride,
                                    keys - warp_key);
#pragma unroll
  for (int m = 0; m < S::kM; ++m) factor[m][0] = factor[m][1] = a.scale;
  store_rows<kDim, S::kM, kAligned>(dk, factor, staging, a.dk.at(key_sequence + warp_key, kv_head * kDim), a.dk.stride,
                                    keys - warp_key);
}

/// Own rows: queries. Columns: k and v.
template <int kDim, int kColumns, bool kAligned, bool kMasked>
__global__ void __launch_bounds__(Shape<kDim, kColumns, kMasked>::kThreads, Shape<kDim, kColumns, kMasked>::kBlocks)
    query_gradient_kernel(BackwardArguments<bf16_t> a) {
  using S = Shape<kDim, kColumns, kMasked>;
  constexpr int kN = 4, kHeld = S::kSteps, kSlot = 2 * S::kTile;
  bf16_t* const own = dynamic_shared<bf16_t>();
  bf16_t* const slots = own + 2 * S::kOwnTile;
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int head = work.head % a.heads, batch = work.head / a.heads, kv_col = head / a.group * kDim;
  const int first = (a.schedule.tiles - 1 - work.rank) * kRows, sequence = batch * a.seq_len;
  const int lane = int(threadIdx.x) % kWarpSize;
  const int warp_row = int(threadIdx.x) / kWarpSize * S::kWarpRows, warp_query = first + warp_row;
  const int end = min(first + kRows, a.seq_len);
  const int keys = kMasked ? a.mask.keys : a.seq_len, key_sequence = kMasked ? batch * keys : sequence;
  const int offset = kMasked ? a.mask.offset : 0, at = offset + warp_query, key_end = offset + end;
  const int down = place_down<kDim>(), across = place_across<kDim>();

  using Source = typename S::Source;
  Source(a.q, sequence + first, head * kDim).template load<kRows, kAligned>(own, end - first);
  Source(a.dout, sequence + first, head * kDim).template load<kRows, kAligned>(own + S::kOwnTile, end - first);
  const SequenceMask mask = a.mask.of(sequence, a.seq_len);
  const int begin = kMasked ? mask.begin_of_keys(offset + first) : 0;
  const int whole = kMasked ? mask.first_visible(at + S::kWarpRows - 1) : 0;   // from here on all queries see each key
  Source k_source(a.k, key_sequence + begin, kv_col), v_source(a.v, key_sequence + begin, kv_col);
  k_source.template load<kColumns, kAligned>(slots, keys - begin);
  v_source.template load<kColumns, kAligned>(slots + S::kTile, keys - begin);
  cp_async_commit();
  float lse[S::kM][2], delta[S::kM][2];
#pragma unroll
  for (int m = 0; m < S::kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = (int64_t(batch) * a.heads + head) * a.padded_len + warp_query + 16 * m + 8 * half + lane / 4;
      lse[m][half] = a.lse[row];
      delta[m][half] = a.delta[row];
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  const int rows = warp_row * kDim + down;
  uint32_t q[S::kSteps][S::kM][4], dout[kHeld][S::kM][4];
  load_left<S>(q, own, rows);
  load_left<S>(dout, own + S::kOwnTile, rows);
  typename S::Sums dq;
  set_zero(dq);

  for (int key = begin, slot = 0; key < key_end; key += kColumns, slot ^= 1) {
    if (key + kColumns < key_end) {
      bf16_t* const next = slots + (slot ^ 1) * kSlot;
      k_source.template load<kColumns, kAligned>(next, keys - key - kColumns);
      v_source.template load<kColumns, kAligned>(next + S::kTile, keys - key - kColumns);
    }
    cp_async_commit();
#pragma unroll 1
    for (int step = 0; step < kColumns && key + step < at + S::kWarpRows; step += 8 * kN) {
      const int columns = slot * kSlot + step * kDim;
      float p[S::kM][kN][4], ds[S::kM][kN][4];
      set_zero(p);
#pragma unroll
      for (int m = 0; m < S::kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) ds[m][n][e] = -delta[m][e / 2];
        }
      }
      multiply_pair<S, kN>(p, ds, q, dout, own + S::kOwnTile, rows, slots, columns + across);
      if constexpr (kMasked) shape_with_slopes(p, ds, HeadScores{a.mask, head});
      if (kMasked && key + step < whole) hide_early_keys(p, mask, at, key + step);
      const bool masked = key + step + 8 * kN > at + 1;
#pragma unroll
      for (int m = 0; m < S::kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int query = at + 16 * m + lane / 4 + 8 * (e / 2), column = key + step + 8 * n + lane % 4 * 2 + e % 2;
            float x = fmaf(p[m][n][e], a.scale2, -lse[m][e / 2]);
            if (masked && column > query) x = -INFINITY;
            ds[m][n][e] *= fast_exp2(x);
          }
        }
      }
      uint32_t left[S::kM][kN / 2][4];
      round_to_left(left, ds);
      multiply_down<kDim, S::kM, kN / 2>(dq, left, slots, columns + down);
    }
    cp_async_wait<0>();
    __syncthreads();
  }
  float factor[S::kM][2];
#pragma unroll
  for (int m = 0; m < S::kM; ++m) factor[m][0] = factor[m][1] = a.scale;
  store_rows<kDim, S::kM, kAligned>(dq, factor, own + warp_row * kDim, a.dq.at(sequence + warp_query, head * kDim), a.dq.stride,
                                    end - warp_query);
}

// ---- launches -----------------------------------------------------------------------------------------------------------------------

constexpr const char* kOp = "attention_backward";

struct Operands {
  Matrix q, k, v, out, dout, dq, dk, dv;
  bool aligned() const {
    for (const Matrix* m : {&q, &k, &v, &out, &dout, &dq, &dk, &dv}) {
      if (!is_vectorizable(*m)) return false;
    }
    return true;
  }
};

/// Rows of lse * lse_factor and delta into scratch.
template <typename T>
void make_row_values(const Queue& queue, const AttentionShape& s, const Operands& x, const float* lse, float lse_factor,
                     float* scratch) {
  const int64_t padded = padded_seq_len(s.seq_len), rows = s.batch * s.heads * padded;
  const DeltaArguments<T> a{heads_of<const T>(x.out, 0), heads_of<const T>(x.dout, 0), lse, scratch, scratch + rows, rows,
                            int(s.seq_len), int(padded), int(s.heads), int(s.head_dim), lse_factor};
  const bool aligned = is_vectorizable(x.out) && is_vectorizable(x.dout) && s.head_dim % Vec<T>::kLength == 0;
  launch(queue, kOp, aligned ? delta_kernel<T, true> : delta_kernel<T, false>, unsigned(div_up(rows * kLanesPerRow, kDeltaThreads)),
         kDeltaThreads, 0, a);
}

template <typename T>
BackwardArguments<T> arguments_of(const AttentionShape& s, const Operands& x, const float* scratch, const Schedule& schedule,
                                  int rows_at_once) {
  const int64_t padded = padded_seq_len(s.seq_len);
  const auto in = [&](const Matrix& m) { return heads_of<const T>(m, rows_at_once); };
  const auto out = [](const Matrix& m) { return heads_of<T>(m, 0); };
  return {in(x.q), in(x.k), in(x.v), in(x.dout), out(x.dq), out(x.dk), out(x.dv), scratch, scratch + s.batch * s.heads * padded, schedule,
          int(s.seq_len), int(padded), int(s.heads), int(s.heads / s.kv_heads), int(s.head_dim), s.scale,
          s.scale * kLog2E, DeviceMask(s)};
}

/// By keys: a block of a key/value head reads all its query heads. By queries: those of a group share keys and values.
template <typename T>
BackwardArguments<T> by_keys(const AttentionShape& s, const Operands& x, const float* scratch, int64_t tile,
                             int rows_at_once) {
  const int64_t bytes = 2 * s.seq_len * s.head_dim * int64_t(sizeof(T)) * (s.heads / s.kv_heads);
  return arguments_of<T>(s, x, scratch, Schedule(div_up(s.keys_of_sequence(), tile), s.batch * s.kv_heads, bytes),
                         rows_at_once);
}
template <typename T>
BackwardArguments<T> by_queries(const AttentionShape& s, const Operands& x, const float* scratch, int64_t tile,
                                int rows_at_once) {
  const int64_t bytes = 2 * s.keys_of_sequence() * s.head_dim * int64_t(sizeof(T)) / (s.heads / s.kv_heads);
  return arguments_of<T>(s, x, scratch, Schedule(div_up(s.seq_len, tile), s.batch * s.heads, bytes), rows_at_once);
}

template <int kDim, int kColumns, bool kAligned, bool kMasked>
void backward_on_tensor_cores(const Queue& queue, const AttentionShape& s, const Operands& x, const float* scratch) {
  using S = Shape<kDim, kColumns, kMasked>;
  const auto keys = by_keys<bf16_t>(s, x, scratch, kRows, S::Source::kRowsAtOnce);
  const auto queries = by_queries<bf16_t>(s, x, scratch, kRows, S::Source::kRowsAtOnce);
  launch(queue, kOp, key_gradient_kernel<kDim, kColumns, kAligned, kMasked>, keys.schedule.blocks(), S::kThreads, S::kBytes, keys);
  launch(queue, kOp, query_gradient_kernel<kDim, kColumns, kAligned, kMasked>, queries.schedule.blocks(), S::kThreads, S::kBytes, queries);
}

template <int kDim, int kColumns>
void backward_on_tensor_cores(const Queue& queue, const AttentionShape& s, const Operands& x, const float* scratch) {
  const auto run = x.aligned() ? s.is_causal() ? backward_on_tensor_cores<kDim, kColumns, true, false>
                                               : backward_on_tensor_cores<kDim, kColumns, true, true>
                   : s.is_causal() ? backward_on_tensor_cores<kDim, kColumns, false, false>
                                   : backward_on_tensor_cores<kDim, kColumns, false, true>;
  run(queue, s, x, scratch);
}

template <typename T>
void backward_plainly(const Queue& queue, const AttentionShape& s, const Operands& x, const float* scratch) {
  with_plain<PlainPass::backward>(s.head_dim, queue.most_shared_bytes, [&](auto plain) {
    using P = decltype(plain);
    constexpr size_t kBytes = plain_bytes(PlainPass::backward, P::kDims, P::kTile);
    const auto keys = by_keys<T>(s, x, scratch, P::kTile, 0), queries = by_queries<T>(s, x, scratch, P::kTile, 0);
    launch(queue, kOp, s.is_causal() ? plain_key_gradient_kernel<T, P, false> : plain_key_gradient_kernel<T, P, true>,
           keys.schedule.blocks(), kPlainThreads, kBytes, keys);
    launch(queue, kOp, s.is_causal() ? plain_query_gradient_kernel<T, P, false> : plain_query_gradient_kernel<T, P, true>,
           queries.schedule.blocks(), kPlainThreads, kBytes, queries);
  });
}

}  // namespace

void enqueue(const Queue& queue, const AttentionBackward& op, void* scratch) {
  const AttentionShape& s = op.shape;
  if (op.q.rows == 0) return;
  const Operands x{op.q, op.k, op.v, op.out, op.dout, op.dq, op.dk, op.dv};
  auto* const values = static_cast<float*>(scratch);
  if (fits_tensor_cores(s, op.q.dtype)) {
    make_row_values<bf16_t>(queue, s, x, op.lse, kLog2E, values);
    static_assert(tensor_backward_columns(64, kLeastSharedBytes) == 64 && tensor_backward_bytes(128, 32) <= kLeastSharedBytes);
    if (x.aligned() && fits_warpgroups(s, queue.compute)) {
      const int dim = int(s.head_dim);
      constexpr auto kKeys = WarpgroupPass::by_keys, kQueries = WarpgroupPass::by_queries;
      hopper_backward(queue, dim,
                      by_keys<bf16_t>(s, x, values, warpgroup_rows(kKeys, dim),
                                      warpgroup_rows_at_once(kKeys, dim)),
                      by_queries<bf16_t>(s, x, values, warpgroup_rows(kQueries, dim),
                                         warpgroup_rows_at_once(kQueries, dim)));
    } else if (s.head_dim == 64) {
      backward_on_tensor_cores<64, 64>(queue, s, x, values);
    } else if (tensor_backward_columns(128, queue.most_shared_bytes) == 64) {
      backward_on_tensor_cores<128, 64>(queue, s, x, values);
    } else {
      backward_on_tensor_cores<128, 32>(queue, s, x, values);
    }
  } else if (op.q.dtype == DType::f32) {
    make_row_values<float>(queue, s, x, op.lse, 1.0f, values);
    backward_plainly<float>(queue, s, x, values);
  } else {
    make_row_values<bf16_t>(queue, s, x, op.lse, 1.0f, values);
    backward_plainly<bf16_t>(queue, s, x, values);
  }
}

}  // namespace trainctl::kernels::cuda
