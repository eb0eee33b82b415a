// Causal attention and its gradients by warpgroup products. The formulas, the order of sums and the two
// passes of the gradient are those of attention.cu and attention_backward.cu.
//
// Kernels have an instance for queries at the positions of their keys and one for queries behind other keys
// (kBehind), of which the first is at position `offset`. Rows of queries are counted from 0.
//
// A block is two or three warpgroups with 64 rows each ("rows": queries, or keys in the key gradient). It
// passes tiles of "columns" (the other side) through a ring of three slots. Each slot has a barrier at which
// the copies of all its threads arrive. A thread asks for the tile after the present one once the present one
// is there: then all threads have begun the tile before it, so that the slot it goes to, that of two tiles
// ago, is free. Nothing else holds the warpgroups together: while one computes probabilities, the other
// multiplies.
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kGroupThreads = 128, kGroupRows = 64;
constexpr int kSlots = 3, kStepBytes = 16 * 64 * 2;  ///< 16 rows of a panel

/// This thread's warpgroup, as a value that the compiler knows to be the same in all lanes: what depends on
/// it is computed once a warp.
__device__ inline int group_of_thread() {
  return __shfl_sync(kFullWarp, int(threadIdx.x) / kGroupThreads, 0);
}

/// The ring: tile i is in slot i % kSlots.
class Ring {
 public:
  __device__ Ring(SharedBarrier* filled, int threads) : filled_(filled) {
    if (threadIdx.x < kSlots) barrier_init(filled + threadIdx.x, threads);
    __syncthreads();
  }
  /// This thread has asked for its part of the next tile.
  __device__ void asked() {
    cp_async_arrive(filled_ + asked_);
    asked_ = next(asked_);
  }
  /// Waits for the next tile; returns its slot.
  __device__ int wait() {
    const int slot = waited_;
    barrier_wait(filled_ + slot, parity_);
    waited_ = next(waited_);
    if (waited_ == 0) parity_ ^= 1;
    return slot;
  }
  /// The slot of the tile that is asked for next.
  __device__ int free_slot() const { return asked_; }

 private:
  static __device__ int next(int slot) { return slot + 1 == kSlots ? 0 : slot + 1; }
  SharedBarrier* filled_;
  int asked_ = 0, waited_ = 0, parity_ = 0;
};

/// The tiles of k and v that a block of queries passes, of a sequence's keys. S: Forward or Backward.
template <typename S, int kKeys>
struct KeyTiles {
  typename S::Source k, v;  ///< of the tile that is asked for next
  bf16_t* slots;
  int keys;  ///< of the sequence

  /// `key`: the tile's first.
  __device__ void ask(Ring& ring, int key) {
    bf16_t* const tiles = slots + ring.free_slot() * S::kSlot;
    k.template load<kKeys, true>(tiles, keys - key);
    v.template load<kKeys, true>(tiles + S::kTile, keys - key);
    ring.asked();
  }
};

/// d = rows times columns^T: a warpgroup's 64 rows of a tile of kRowsOfA, and kN columns.
template <int kDim, int kN, int kRowsOfA>
__device__ inline void multiply_rows(float (&d)[kN / 8][4], SharedPlace a, SharedPlace b) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
    wgmma_across<kN>(d, a + (k / 4 * (kRowsOfA * 128) + k % 4 * 32), b + (k / 4 * (kN * 128) + k % 4 * 32),
                     k > 0);
}
/// d += left times a tile's 16 kK rows.
template <int kDim, int kK>
__device__ inline void multiply_tile(float (&d)[kDim / 8][4], const uint32_t (&left)[kK][4],
                                     SharedPlace tile) {
#pragma unroll
  for (int k = 0; k < kK; ++k) wgmma_down<kDim>(d, left[k], tile + k * kStepBytes);
}

// ---- forward ----------------------------------------------------------------------------------------------

/// Dimension 64: two blocks a multiprocessor, tiles of 64 keys, queries in registers. Dimension 128: one,
/// tiles of 128 keys.
template <int kDimOfHead>
struct Forward {
  static constexpr int kDim = kDimOfHead, kKeys = kDim == 64 ? 64 : 128, kBlocks = kDim == 64 ? 2 : 1;
  static constexpr int kThreads = warpgroups(WarpgroupPass::forward, kDim) * kGroupThreads;
  static constexpr int kRows = warpgroup_rows(WarpgroupPass::forward, kDim);
  static constexpr int kOwnTile = kRows * kDim, kTile = kKeys * kDim, kSlot = 2 * kTile;
  using Source = TileSource<kDim, kThreads, 64>;
  static constexpr size_t kBytes = size_t(kOwnTile + kSlots * kSlot) * 2 + kSlots * sizeof(SharedBarrier);
  static_assert(kBytes <= size_t{227} << 10);
};

template <int kDim, bool kBehind>
__global__ void __launch_bounds__(Forward<kDim>::kThreads, Forward<kDim>::kBlocks)
    hopper_forward_kernel(ForwardArguments<bf16_t> a) {
  using F = Forward<kDim>;
  constexpr int kKeys = F::kKeys, kN = kKeys / 8, kRows = F::kRows;
  bf16_t* const q = dynamic_shared<bf16_t>();
  bf16_t* const slots = q + F::kOwnTile;
  Ring ring(reinterpret_cast<SharedBarrier*>(slots + kSlots * F::kSlot), F::kThreads);
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int first = (a.schedule.tiles - 1 - work.rank) * kRows, head = work.head % a.heads;
  const int sequence = work.head / a.heads * a.seq_len, kv_col = head / a.group * kDim;
  const int keys_of_sequence = kBehind ? a.mask.keys : a.seq_len;
  const int key_sequence = kBehind ? work.head / a.heads * keys_of_sequence : sequence;
  const int at = kBehind ? a.mask.offset + first : first;
  const int group = group_of_thread(), group_query = at + group * kGroupRows;
  const int warp_row = int(threadIdx.x) / kWarpSize * 16;
  const int end = min(first + kRows, a.seq_len), key_end = kBehind ? a.mask.offset + end : end;

  using Source = typename F::Source;
  Source(a.q, sequence + first, head * kDim).template load<kRows, true>(q, end - first);
  KeyTiles<F, kKeys> keys{Source(a.k, key_sequence, kv_col), Source(a.v, key_sequence, kv_col), slots,
                          keys_of_sequence};
  keys.ask(ring, 0);
  float out[1][kDim / 8][4];
  set_zero(out);
  RowState<1> state;
  begin_rows(state);
  const SharedPlace q_place = shared_place(q + group * kGroupRows * 64, 0);
  uint32_t left[kDim / 16][4];  // of dimension 64

  for (int key = 0; key < key_end; key += kKeys) {
    const bf16_t* const slot = slots + ring.wait() * F::kSlot;
    if (key + kKeys < key_end) keys.ask(ring, key + kKeys);
    if constexpr (kDim == 64) {
      if (key == 0) {
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k)
          ldmatrix_x4(left[k], q + ((warp_row * kDim + place_down<64>()) ^ (16 * k)));
      }
    }
    if (key >= group_query + kGroupRows) continue;  // no query of the group sees these
    float scores[1][kN][4];
    wgmma_begin();
    if constexpr (kDim == 64) {
      changed_by_wgmma(scores[0]);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
        wgmma_across<kKeys>(scores[0], left[k], shared_place(slot, 0) + k * 32, k > 0);
    } else {
      multiply_rows<kDim, kKeys, kRows>(scores[0], q_place, shared_place(slot, 0));
    }
    wgmma_commit();
    wgmma_wait<0>();
    changed_by_wgmma(scores[0]);
    if (key + kKeys > group_query) mask_scores(scores, at + warp_row - key);
    uint32_t p[1][kN / 2][4];
    softmax_step(p, scores, out, state, a.scale2);
    changed_by_wgmma(out[0]);
    wgmma_begin();
    multiply_tile<kDim, kN / 2>(out[0], p[0], shared_place(slot + F::kTile, kKeys * 128));
    wgmma_commit();
    wgmma_wait<0>();
    changed_by_wgmma(out[0]);
  }
  __syncthreads();  // rows are turned where the queries are
  finish_rows<kDim, true>(a, out, state, q + warp_row * kDim, sequence + first + warp_row, head,
                          end - first - warp_row);
}

// ---- backward ---------------------------------------------------------------------------------------------

/// Two resident tiles of rows; a slot has two tiles of 64 columns. With dimension 64, two blocks of queries
/// share a multiprocessor.
template <int kDimOfHead, WarpgroupPass kPass>
struct Backward {
  static constexpr int kDim = kDimOfHead, kColumns = 64, kN = kColumns / 8;
  static constexpr int kThreads = warpgroups(kPass, kDim) * kGroupThreads,
                       kRows = warpgroup_rows(kPass, kDim);
  static constexpr int kBlocks = kPass == WarpgroupPass::by_queries && kDim == 64 ? 2 : 1;
  static constexpr int kOwnTile = kRows * kDim, kTile = kColumns * kDim, kSlot = 2 * kTile;
  static constexpr int kValues = 2 * kColumns;  ///< floats of a slot: lse and delta
  static constexpr size_t kBytes = size_t(2 * kOwnTile + kSlots * kSlot) * 2 + size_t(kSlots * kValues) * 4 +
                                   kSlots * sizeof(SharedBarrier);
  static_assert(kBytes <= size_t{227} << 10);
  using Source = TileSource<kDim, kThreads, 64>;
  using Sums = float[1][kDim / 8][4];
  using Scores = float[1][kN][4];
  using Left = uint32_t[1][kN / 2][4];
};
template <int kDim>
using ByKeys = Backward<kDim, WarpgroupPass::by_keys>;
template <int kDim>
using ByQueries = Backward<kDim, WarpgroupPass::by_queries>;

/// Scores of keys (rows) after the query (column) become -infinity. `distance`: of the first column after the
/// warp's first row.
template <int kN>
__device__ inline void hide_keys(float (&scores)[1][kN][4], int distance) {
  const int lane = int(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = lane / 4 + 8 * (e / 2), at = distance + 8 * n + lane % 4 * 2 + e % 2;
      if (key > at) scores[0][n][e] = -INFINITY;
    }
  }
}

/// P of scores whose columns are queries. `lse`: of this lane's first column.
template <int kN>
__device__ inline void to_probabilities(float (&p)[1][kN][4], const float* lse, float scale2) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float2 both = *reinterpret_cast<const float2*>(lse + 8 * n);
#pragma unroll
    for (int e = 0; e < 4; ++e) p[0][n][e] = fast_exp2(fmaf(p[0][n][e], scale2, -(e % 2 ? both.y : both.x)));
  }
}

/// dS of dP whose columns are queries. kRoundedP: with P as dV is computed with, rounded to bf16 (`left_p`);
/// dS is rounded itself afterwards. That saves the registers for a third group.
template <bool kRoundedP, int kN>
__device__ inline void to_score_gradients(float (&ds)[1][kN][4], const float (&p)[1][kN][4],
                                          const uint32_t (&left_p)[1][kN / 2][4], const float* delta) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float2 both = *reinterpret_cast<const float2*>(delta + 8 * n);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t pair = left_p[0][n / 2][n % 2 * 2 + e / 2];
      const float probability =
          kRoundedP ? __uint_as_float(e % 2 ? pair & 0xffff0000u : pair << 16) : p[0][n][e];
      ds[0][n][e] = probability * (ds[0][n][e] - (e % 2 ? both.y : both.x));
    }
  }
}

/// The tiles that a key gradient passes: q, dout, lse and delta of one query head after another, each from
/// query `first` of the sequence to the last.
template <typename B>
struct QueryTiles {
  const BackwardArguments<bf16_t>& a;
  bf16_t* slots;
  float* values;
  int batch, first, last_head;
  int head, query;  ///< of the tile that is asked for next

  __device__ bool more() const { return head < last_head; }
  __device__ void ask(Ring& ring) {
    constexpr int kColumns = B::kColumns, kPieces = kColumns / 4;
    using Source = typename B::Source;
    const int slot = ring.free_slot(), row = batch * a.seq_len + query, col = head * B::kDim;
    bf16_t* const tiles = slots + slot * B::kSlot;
    Source(a.q, row, col).template load<kColumns, true>(tiles, a.seq_len - query);
    Source(a.dout, row, col).template load<kColumns, true>(tiles + B::kTile, a.seq_len - query);
    if (const int thread = int(threadIdx.x); thread < 2 * kPieces) {
      const int64_t value = (int64_t(batch) * a.heads + head) * a.padded_len + query;
      cp_async16(values + slot * B::kValues + thread * 4,
                 (thread < kPieces ? a.lse : a.delta) + value + thread % kPieces * 4);
    }
    ring.asked();
    query += kColumns;
    if (query >= a.seq_len) query = first, ++head;
  }
};

/// Own rows: keys. Columns: queries.
template <int kDim, bool kBehind>
__global__ void __launch_bounds__(ByKeys<kDim>::kThreads, ByKeys<kDim>::kBlocks)
    hopper_key_gradient_kernel(BackwardArguments<bf16_t> a) {
  using B = ByKeys<kDim>;
  using Source = typename B::Source;
  constexpr bool kRoundedP = kDim == 64;
  constexpr int kColumns = B::kColumns, kN = B::kN, kRows = B::kRows;
  bf16_t* const own = dynamic_shared<bf16_t>();
  bf16_t* const slots = own + 2 * B::kOwnTile;
  float* const values = reinterpret_cast<float*>(slots + kSlots * B::kSlot);
  Ring ring(reinterpret_cast<SharedBarrier*>(values + kSlots * B::kValues), B::kThreads);
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int kv_heads = a.heads / a.group, kv_head = work.head % kv_heads, batch = work.head / kv_heads;
  const int keys_of_sequence = kBehind ? a.mask.keys : a.seq_len;
  const int first = work.rank * kRows, sequence = batch * keys_of_sequence, kv_col = kv_head * kDim;
  // The first query that sees a key of the block, and the distance of its position after the first key.
  const int begin = kBehind ? max(first - a.mask.offset, 0) / kColumns * kColumns : first;
  const int shift = kBehind ? a.mask.offset + begin - first : 0;
  const int group_row = group_of_thread() * kGroupRows;
  const int warp_row = int(threadIdx.x) / kWarpSize * 16, warp_key = first + warp_row;

  const int tiles_of_head = (a.seq_len - begin + kColumns - 1) / kColumns;  // below 1: no query sees them
  QueryTiles<B> queries{a, slots, values, batch, begin, (kv_head + 1) * a.group, kv_head * a.group, begin};
  if (!kBehind || tiles_of_head > 0) {  // else no thread waits for the copies, and `own` is written below
    Source(a.k, sequence + first, kv_col).template load<kRows, true>(own, keys_of_sequence - first);
    Source(a.v, sequence + first, kv_col)
        .template load<kRows, true>(own + B::kOwnTile, keys_of_sequence - first);
    queries.ask(ring);
  }
  typename B::Sums dk, dv;
  set_zero(dk);
  set_zero(dv);
  const SharedPlace k_place = shared_place(own + group_row * 64, 0);
  const SharedPlace v_place = shared_place(own + B::kOwnTile + group_row * 64, 0);

  for (int of_group = 0; of_group < a.group; ++of_group) {
    for (int tile = 0; tile < tiles_of_head; ++tile) {
      const int slot = ring.wait();
      if (queries.more()) queries.ask(ring);
      const int distance = shift + tile * kColumns;
      if (distance + kColumns <= group_row) continue;  // these queries see none of the group's keys
      const bf16_t* const q = slots + slot * B::kSlot;
      const bf16_t* const dout = q + B::kTile;
      const float* const lse = values + slot * B::kValues + int(threadIdx.x) % 4 * 2;
      typename B::Scores p, ds;
      wgmma_begin();
      multiply_rows<kDim, kColumns, kRows>(p[0], k_place, shared_place(q, 0));
      wgmma_commit();
      multiply_rows<kDim, kColumns, kRows>(ds[0], v_place, shared_place(dout, 0));
      wgmma_commit();
      wgmma_wait<1>();
      changed_by_wgmma(p[0]);
      if (distance < group_row + kGroupRows) hide_keys(p, distance - warp_row);
      to_probabilities(p, lse, a.scale2);
      typename B::Left left_p, left_ds;
      round_to_left(left_p, p);
      wgmma_wait<0>();
      changed_by_wgmma(ds[0]);
      changed_by_wgmma(dv[0]);
      wgmma_begin();
      multiply_tile<kDim, kN / 2>(dv[0], left_p[0], shared_place(dout, kColumns * 128));
      wgmma_commit();
      to_score_gradients<kRoundedP>(ds, p, left_p, lse + kColumns);
      round_to_left(left_ds, ds);
      changed_by_wgmma(dk[0]);
      wgmma_begin();
      multiply_tile<kDim, kN / 2>(dk[0], left_ds[0], shared_place(q, kColumns * 128));
      wgmma_commit();
      wgmma_wait<0>();
      changed_by_wgmma(dv[0]);
      changed_by_wgmma(dk[0]);
    }
  }
  __syncthreads();  // rows are turned where the keys are
  const int valid = keys_of_sequence - warp_key;
  float factor[1][2] = {{1.0f, 1.0f}};
  bf16_t* const staging = own + warp_row * kDim;
  store_rows<kDim, 1, true>(dv, factor, staging, a.dv.at(sequence + warp_key, kv_col), a.dv.stride, valid);
  factor[0][0] = factor[0][1] = a.scale;
  store_rows<kDim, 1, true>(dk, factor, staging, a.dk.at(sequence + warp_key, kv_col), a.dk.stride, valid);
}

/// lse and delta of a lane's two rows, which are queries; those from `end` on do not exist.
__device__ inline void load_rows_values(float (&lse)[2], float (&delta)[2],
                                        const BackwardArguments<bf16_t>& a, int64_t row_of_head,
                                        int warp_query, int end) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = warp_query + 8 * half + int(threadIdx.x) % kWarpSize / 4;
    lse[half] = query < end ? a.lse[row_of_head + query] : INFINITY;
    delta[half] = query < end ? a.delta[row_of_head + query] : 0.0f;
  }
}

/// Own rows: queries. Columns: k and v.
template <int kDim, bool kBehind>
__global__ void __launch_bounds__(ByQueries<kDim>::kThreads, ByQueries<kDim>::kBlocks)
    hopper_query_gradient_kernel(BackwardArguments<bf16_t> a) {
  using B = ByQueries<kDim>;
  constexpr int kColumns = B::kColumns, kN = B::kN, kRows = B::kRows;
  bf16_t* const own = dynamic_shared<bf16_t>();
  bf16_t* const slots = own + 2 * B::kOwnTile;
  Ring ring(reinterpret_cast<SharedBarrier*>(slots + kSlots * B::kSlot), B::kThreads);
  const Schedule::Work work = a.schedule[int(blockIdx.x)];
  const int head = work.head % a.heads, batch = work.head / a.heads, kv_col = head / a.group * kDim;
  const int first = (a.schedule.tiles - 1 - work.rank) * kRows, sequence = batch * a.seq_len;
  const int group_row = group_of_thread() * kGroupRows;
  const int warp_row = int(threadIdx.x) / kWarpSize * 16, warp_query = first + warp_row;
  const int end = min(first + kRows, a.seq_len);
  const int keys_of_sequence = kBehind ? a.mask.keys : a.seq_len;
  const int key_sequence = kBehind ? batch * keys_of_sequence : sequence;
  const int offset = kBehind ? a.mask.offset : 0, at = offset + first, key_end = offset + end;

  using Source = typename B::Source;
  Source(a.q, sequence + first, head * kDim).template load<kRows, true>(own, end - first);
  Source(a.dout, sequence + first, head * kDim).template load<kRows, true>(own + B::kOwnTile, end - first);
  KeyTiles<B, kColumns> keys{Source(a.k, key_sequence, kv_col), Source(a.v, key_sequence, kv_col), slots,
                             keys_of_sequence};
  keys.ask(ring, 0);
  float lse[2], delta[2];
  load_rows_values(lse, delta, a, (int64_t(batch) * a.heads + head) * a.padded_len, warp_query, end);
  typename B::Sums dq;
  set_zero(dq);
  const SharedPlace q_place = shared_place(own + group_row * 64, 0),
                    dout_place = shared_place(own + B::kOwnTile + group_row * 64, 0);

  for (int key = 0; key < key_end; key += kColumns) {
    const bf16_t* const tiles = slots + ring.wait() * B::kSlot;
    if (key + kColumns < key_end) keys.ask(ring, key + kColumns);
    if (key >= at + group_row + kGroupRows) continue;  // no query of the group sees these
    typename B::Scores p, ds;
    wgmma_begin();
    multiply_rows<kDim, kColumns, kRows>(p[0], q_place, shared_place(tiles, 0));
    wgmma_commit();
    multiply_rows<kDim, kColumns, kRows>(ds[0], dout_place, shared_place(tiles + B::kTile, 0));
    wgmma_commit();
    wgmma_wait<1>();
    changed_by_wgmma(p[0]);
    if (key + kColumns > at + group_row) mask_scores(p, at + warp_row - key);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) p[0][n][e] = fast_exp2(fmaf(p[0][n][e], a.scale2, -lse[e / 2]));
    }
    wgmma_wait<0>();
    changed_by_wgmma(ds[0]);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) ds[0][n][e] = p[0][n][e] * (ds[0][n][e] - delta[e / 2]);
    }
    typename B::Left left;
    round_to_left(left, ds);
    changed_by_wgmma(dq[0]);
    wgmma_begin();
    multiply_tile<kDim, kN / 2>(dq[0], left[0], shared_place(tiles, kColumns * 128));
    wgmma_commit();
    wgmma_wait<0>();
    changed_by_wgmma(dq[0]);
  }
  __syncthreads();  // rows are turned where the queries are
  float factor[1][2] = {{a.scale, a.scale}};
  store_rows<kDim, 1, true>(dq, factor, own + warp_row * kDim, a.dq.at(sequence + warp_query, head * kDim),
                            a.dq.stride, end - warp_query);
}

/// Whether queries are not at the positions of their keys.
template <typename Arguments>
bool is_behind(const Arguments& a) {
  return a.mask.keys != a.seq_len;
}

}  // namespace

void hopper_forward(const Queue& queue, int dim, const ForwardArguments<bf16_t>& a) {
  const auto run = [&](auto forward, auto kernel, auto behind) {
    using F = decltype(forward);
    launch(queue, "attention_forward", is_behind(a) ? behind : kernel, a.schedule.blocks(), F::kThreads,
           F::kBytes, a);
  };
  dim == 64 ? run(Forward<64>{}, hopper_forward_kernel<64, false>, hopper_forward_kernel<64, true>)
            : run(Forward<128>{}, hopper_forward_kernel<128, false>, hopper_forward_kernel<128, true>);
}

void hopper_backward(const Queue& queue, int dim, const BackwardArguments<bf16_t>& by_keys,
                     const BackwardArguments<bf16_t>& by_queries) {
  const auto run = [&](auto backward, auto kernel, auto behind, const BackwardArguments<bf16_t>& a) {
    using B = decltype(backward);
    launch(queue, "attention_backward", is_behind(a) ? behind : kernel, a.schedule.blocks(), B::kThreads,
           B::kBytes, a);
  };
  const auto run_all = [&](auto dims) {
    constexpr int kDim = decltype(dims)::value;
    run(ByKeys<kDim>{}, hopper_key_gradient_kernel<kDim, false>, hopper_key_gradient_kernel<kDim, true>,
        by_keys);
    run(ByQueries<kDim>{}, hopper_query_gradient_kernel<kDim, false>,
        hopper_query_gradient_kernel<kDim, true>, by_queries);
  };
  dim == 64 ? run_all(std::integral_constant<int, 64>{}) : run_all(std::integral_constant<int, 128>{});
}

}  // namespace trainctl::kernels::cuda
