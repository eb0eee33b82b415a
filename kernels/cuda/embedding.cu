// Rows of tables: looked up by token, added by position, and their gradients, each sum in an order fixed by the tokens alone.
#include <climits>
#include <utility>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ragged.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

/// A matrix as kernels see it.
template <typename T>
struct View {
  T* data;
  int64_t rows, cols, stride;
  __device__ T* row(int64_t r) const { return data + r * stride; }
};
template <typename T>
View<T> view(const Matrix& m) {
  return {static_cast<T*>(m.data), m.rows, m.cols, m.stride};
}

__device__ inline int64_t warp_of_grid() { return int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarpSize; }
dim3 warp_per(int64_t n, unsigned slabs = 1) {
  ENSURE(div_up(n, kWarps) <= INT_MAX);
  return dim3(unsigned(div_up(n, kWarps)), slabs);
}

/// A lane's group of columns, of which `count` exist. kWhole promises that all groups are whole and
/// aligned to 16 bytes: then no load waits for a branch, and several are in flight.
template <int N, bool kWhole, typename T>
__device__ inline Group<N> load_columns(const T* from, int count) {
  if constexpr (kWhole) {
    return load_group<N, true>(from);
  } else {
    return load_group<N, false>(from, count);
  }
}
template <int N, bool kWhole, typename T>
__device__ inline void store_columns(T* to, int count, const Group<N>& g) {
  if constexpr (kWhole) {
    store_group<N, true>(to, g);
  } else {
    store_first(to, count, g);
  }
}
/// The group of columns that begins at `first`: none exist beyond the last, where the first columns stand in for it.
struct Columns {
  int64_t begin;
  int count;
};
template <int N>
__device__ inline Columns columns_at(int64_t first, int64_t cols) {
  if (first >= cols) return {0, 0};
  return {first, int(cols - first < N ? cols - first : N)};
}

/// Calls f(column, count) for this lane's groups of N columns of [0, cols).
template <int N, typename F>
__device__ inline void over_groups(int64_t cols, F f) {
#pragma unroll 2
  for (int64_t c = int64_t(threadIdx.x % kWarpSize) * N; c < cols; c += kWarpSize * N) f(c, int(cols - c < N ? cols - c : N));
}

// ---- forward: one warp a row ----------------------------------------------------------------------------------------------------

template <bool kWhole, typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    lookup_kernel(const int32_t* ids, View<const T> table, int64_t vocab_begin, float scale, View<Out> out) {
  constexpr int N = Vec<Out>::kLength;
  const int64_t m = warp_of_grid();
  if (m >= out.rows) return;
  const int64_t r = ids[m] - vocab_begin;
  const bool here = r >= 0 && r < table.rows;
  if (here) {
    over_groups<N>(out.cols, [&](int64_t c, int count) {
      Group<N> g = load_columns<N, kWhole>(table.row(r) + c, count);
#pragma unroll
      for (int i = 0; i < N; ++i) g.v[i] *= scale;
      store_columns<N, kWhole>(out.row(m) + c, count, g);
    });
  } else {
    over_groups<N>(out.cols, [&](int64_t c, int count) { store_columns<N, kWhole>(out.row(m) + c, count, Group<N>{}); });
  }
}

template <bool kWhole, typename T, typename X>
__global__ void __launch_bounds__(kThreads)
    add_position_kernel(View<const T> table, int64_t first_row, int64_t seq_len, const int32_t* positions, View<X> x) {
  constexpr int N = Vec<X>::kLength;
  const int64_t m = warp_of_grid();
  if (m >= x.rows) return;
  const T* position = table.row(positions ? positions[m] : (first_row + m) % seq_len);
  over_groups<N>(x.cols, [&](int64_t c, int count) {
    Group<N> g = load_columns<N, kWhole>(x.row(m) + c, count);
    const Group<N> p = load_columns<N, kWhole>(position + c, count);
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] += p.v[i];
    store_columns<N, kWhole>(x.row(m) + c, count, g);
  });
}

// ---- gradient by position: one warp for up to 32 groups of columns of one position, its rows in order ---------------------------

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads)
    add_position_backward_kernel(View<const T> dx, int64_t first_row, int64_t seq_len, View<float> dtable) {
  constexpr int N = Vec<T>::kLength;
  const int64_t t = warp_of_grid();
  const int64_t c = (int64_t(blockIdx.y) * kWarpSize + threadIdx.x % kWarpSize) * N;
  if (t >= seq_len || c >= dx.cols) return;
  const int count = int(dx.cols - c < N ? dx.cols - c : N);
  int64_t m = (t + seq_len - first_row % seq_len) % seq_len;
  if (m >= dx.rows) return;
  Group<N> sum = load_columns<N, kWhole>(dtable.row(t) + c, count);
#pragma unroll 4
  for (; m < dx.rows; m += seq_len) {
    const Group<N> g = load_columns<N, kWhole>(dx.row(m) + c, count);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] += g.v[i];
  }
  store_columns<N, kWhole>(dtable.row(t) + c, count, sum);
}

// ---- gradient by token ----------------------------------------------------------------------------------------------------------
// Tokens are sorted by (row of the table, m). Then each row that occurs is a run: up to kShortRun tokens are added one after the
// other by a warp, more by a block, in kLongLanes interleaved sums that are added in order.

constexpr uint32_t kOutside = 0xffffffffu;   ///< the row of tokens that are not in the local vocabulary: sorted last
constexpr uint64_t kNoToken = ~uint64_t{0};  ///< fills the last chunk
constexpr int kShortRun = kWarpSize;

__device__ inline uint32_t row_of(uint64_t key) { return uint32_t(key >> 32); }
__device__ inline int64_t token_of(uint64_t key) { return int64_t(key & 0xffffffffu); }

/// Sorts the chunk of `size` tokens (a power of two, twice the threads) of this block: a bitonic network.
__global__ void __launch_bounds__(int(kSortChunk / 2))
    sort_chunks_kernel(const int32_t* ids, int64_t tokens, int64_t vocab_begin, int64_t vocab, int size, uint64_t* sorted_chunks) {
  __shared__ uint64_t keys[kSortChunk];
  const int64_t first = int64_t(blockIdx.x) * size;
  for (int i = int(threadIdx.x); i < size; i += size / 2) {
    const int64_t m = first + i;
    const int64_t r = m < tokens ? ids[m] - vocab_begin : -1;
    const uint32_t row = r >= 0 && r < vocab ? uint32_t(r) : kOutside;
    keys[i] = m < tokens ? uint64_t(row) << 32 | uint64_t(m) : kNoToken;
  }
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      const int t = int(threadIdx.x);
      const int low = 2 * t - (t & (distance - 1)), high = low + distance;
      const bool ascending = (low & width) == 0;
      const uint64_t a = keys[low], b = keys[high];
      if ((a > b) == ascending) {
        keys[low] = b;
        keys[high] = a;
      }
      __syncthreads();
    }
  }
  for (int i = int(threadIdx.x); i < size; i += size / 2) sorted_chunks[first + i] = keys[i];
}

/// How many of the `count` sorted keys are smaller than `key`.
__device__ inline int smaller_keys(const uint64_t* keys, int count, uint64_t key) {
  int low = 0;
  for (int high = count; low < high;) {
    const int middle = low + (high - low) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The number of runs merged at once: the work for a token grows with the logarithm of the tokens.
constexpr int kMergedRuns = 16;

/// Merges each kMergedRuns neighbouring sorted runs of `run` tokens (the last run may be shorter): a token's place is the number of
/// smaller keys in all of them.
__global__ void __launch_bounds__(kThreads) merge_runs_kernel(const uint64_t* from, int tokens, int64_t run, uint64_t* to) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens) return;
  const uint64_t key = from[i];
  const int64_t own = i / run * run, group = i / (run * kMergedRuns) * (run * kMergedRuns);
  int64_t place = group;
#pragma unroll 2
  for (int k = 0; k < kMergedRuns; ++k) {
    const int64_t begin = group + k * run;
    if (begin >= tokens) break;
    place += begin == own ? i - own : smaller_keys(from + begin, int(tokens - begin < run ? tokens - begin : run), key);
  }
  to[place] = key;
}

/// One warp a place in the sorted tokens: where a short run begins, it adds the run to its row of the table, token by token.
template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads) short_runs_kernel(const uint64_t* sorted, View<const T> dout, float scale, View<float> dtable) {
  constexpr int N = Vec<T>::kLength;
  const int64_t begin = warp_of_grid();
  const int lane = int(threadIdx.x % kWarpSize);
  if (begin >= dout.rows) return;
  const uint32_t row = row_of(sorted[begin]);
  if (row == kOutside || (begin > 0 && row_of(sorted[begin - 1]) == row)) return;
  if (begin + kShortRun < dout.rows && row_of(sorted[begin + kShortRun]) == row) return;
  const uint64_t own = begin + lane < dout.rows ? sorted[begin + lane] : kNoToken;
  const int length = __popc(__ballot_sync(kFullWarp, row_of(own) == row));
  const int token = int(token_of(own));

  const auto [c, count] = columns_at<N>((int64_t(blockIdx.y) * kWarpSize + lane) * N, dout.cols);
  float* to = dtable.row(row) + c;
  Group<N> sum = load_columns<N, kWhole>(to, count);
#pragma unroll 4
  for (int j = 0; j < length; ++j) {
    const int64_t m = __shfl_sync(kFullWarp, token, j);
    const Group<N> g = load_columns<N, kWhole>(dout.row(m) + c, count);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] += __fmul_rn(scale, g.v[i]);
  }
  if (count > 0) store_columns<N, kWhole>(to, count, sum);
}

constexpr int kLongThreads = 512, kLongGroups = 8, kLongLanes = kLongThreads / kLongGroups;
constexpr int kPlacesPerBlock = 8;   ///< each kShortRun tokens apart, so that a long run covers at least one

/// The first place of [low, high) whose row is at least `row`, or high.
__device__ inline int64_t first_not_below(const uint64_t* sorted, int64_t low, int64_t high, uint64_t row) {
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row_of(sorted[middle]) < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The sum of the tokens [begin, end) of `sorted`, added to `row` of the table for the kLongGroups groups of columns of this block.
template <bool kWhole, typename T>
__device__ inline void add_long_run(const uint64_t* sorted, int64_t begin, int64_t end, const View<const T>& dout,
                                    float scale, const View<float>& dtable, uint32_t row) {
  constexpr int N = Vec<T>::kLength, kCols = kLongGroups * N, kPitch = kCols + 8;   // four lanes' rows, 8 banks apart
  __shared__ float partial[kLongLanes * kPitch];
  const int group = int(threadIdx.x) % kLongGroups, lane = int(threadIdx.x) / kLongGroups;
  const int64_t first_col = int64_t(blockIdx.y) * kCols;
  const auto [c, count] = columns_at<N>(first_col + group * N, dout.cols);
  Group<N> sum{};
#pragma unroll 4
  for (int64_t j = begin + lane; j < end; j += kLongLanes) {
    const Group<N> g = load_columns<N, kWhole>(dout.row(token_of(sorted[j])) + c, count);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] += __fmul_rn(scale, g.v[i]);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) partial[lane * kPitch + i * kLongGroups + group] = sum.v[i];
  __syncthreads();
  const int own = int(threadIdx.x);
  const int64_t column = first_col + own % kLongGroups * N + own / kLongGroups;
  if (own < kCols && column < dout.cols) {
    float total = 0;
#pragma unroll 8
    for (int j = 0; j < kLongLanes; ++j) total += partial[j * kPitch + own];
    dtable.row(row)[column] += total;
  }
  __syncthreads();
}

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kLongThreads) long_runs_kernel(const uint64_t* sorted, View<const T> dout, float scale,
                                                                View<float> dtable) {
  const int64_t tokens = dout.rows;
  for (int k = 0; k < kPlacesPerBlock; ++k) {
    const int64_t place = (int64_t(blockIdx.x) * kPlacesPerBlock + k) * kShortRun;
    if (place >= tokens) return;
    const uint32_t row = row_of(sorted[place]);
    if (row == kOutside) return;
    if (place > 0 && row_of(sorted[place - kShortRun]) == row) continue;   // an earlier place is in the run, too
    const int64_t begin = first_not_below(sorted, place > 0 ? place - kShortRun + 1 : 0, place, row);
    if (begin + kShortRun >= tokens || row_of(sorted[begin + kShortRun]) != row) continue;
    const int64_t end = first_not_below(sorted, begin + kShortRun, tokens, uint64_t(row) + 1);
    add_long_run<kWhole>(sorted, begin, end, dout, scale, dtable, row);
  }
}

/// Calls f(bool_constant) with whether rows of both matrices are made of whole groups on 16 bytes.
template <typename F>
void with_whole_groups(const Matrix& a, const Matrix& b, F f) {
  if (is_vectorizable(a) && is_vectorizable(b)) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

}  // namespace

void enqueue(const Queue& queue, const EmbeddingForward& op) {
  with_type(op.table.dtype, [&](auto table_tag) {
    with_type(op.out.dtype, [&](auto out_tag) {
      with_whole_groups(op.table, op.out, [&](auto whole) {
        using T = typename decltype(table_tag)::type;
        using Out = typename decltype(out_tag)::type;
        launch(queue, "embedding_forward", lookup_kernel<decltype(whole)::value, T, Out>, warp_per(op.out.rows),
               dim3(kThreads), 0, op.ids, view<const T>(op.table), op.vocab_begin, op.scale, view<Out>(op.out));
      });
    });
  });
}

void enqueue(const Queue& queue, const AddPosition& op) {
  with_type(op.table.dtype, [&](auto table_tag) {
    with_type(op.x.dtype, [&](auto x_tag) {
      with_whole_groups(op.table, op.x, [&](auto whole) {
        using T = typename decltype(table_tag)::type;
        using X = typename decltype(x_tag)::type;
        launch(queue, "add_position", add_position_kernel<decltype(whole)::value, T, X>, warp_per(op.x.rows),
               dim3(kThreads), 0, view<const T>(op.table), op.first_row, op.seq_len, op.positions,
               view<X>(op.x));
      });
    });
  });
}

void enqueue(const Queue& queue, const AddPositionBackward& op) {
  with_type(op.dx.dtype, [&](auto tag) {
    with_whole_groups(op.dx, op.dtable, [&](auto whole) {
      using T = typename decltype(tag)::type;
      const auto slabs = unsigned(div_up(op.dx.cols, kWarpSize * Vec<T>::kLength));
      launch(queue, "add_position_backward", add_position_backward_kernel<decltype(whole)::value, T>,
             warp_per(op.seq_len, slabs), dim3(kThreads), 0, view<const T>(op.dx), op.first_row, op.seq_len, view<float>(op.dtable));
    });
  });
}

void enqueue(const Queue& queue, const EmbeddingBackward& op, void* scratch) {
  constexpr const char* kOp = "embedding_backward";
  const int64_t tokens = op.dout.rows;
  if (tokens == 0) return;
  ENSURE(tokens <= INT_MAX && op.dtable.rows < int64_t(kOutside));
  const int64_t size = sort_chunk_of(tokens), chunks = div_up(tokens, size);
  auto* sorted = static_cast<uint64_t*>(scratch);
  uint64_t* other = sorted + chunks * size;
  launch(queue, kOp, sort_chunks_kernel, dim3(unsigned(chunks)), dim3(unsigned(size / 2)), 0, op.ids, tokens,
         op.vocab_begin, op.dtable.rows, int(size), sorted);
  for (int64_t run = size; run < tokens; run *= kMergedRuns, std::swap(sorted, other)) {
    launch(queue, kOp, merge_runs_kernel, dim3(unsigned(div_up(tokens, kThreads))), dim3(kThreads), 0, sorted, int(tokens), run, other);
  }
  with_type(op.dout.dtype, [&](auto tag) {
    with_whole_groups(op.dout, op.dtable, [&](auto whole) {
      using T = typename decltype(tag)::type;
      constexpr bool kWhole = decltype(whole)::value;
      constexpr int64_t N = Vec<T>::kLength;
      launch(queue, kOp, short_runs_kernel<kWhole, T>,
             warp_per(tokens, unsigned(div_up(op.dout.cols, kWarpSize * N))), dim3(kThreads), 0, sorted,
             view<const T>(op.dout), op.scale, view<float>(op.dtable));
      if (tokens <= kShortRun) return;
      const dim3 grid(unsigned(div_up(tokens, kShortRun * kPlacesPerBlock)),
                      unsigned(div_up(op.dout.cols, kLongGroups * N)));
      launch(queue, kOp, long_runs_kernel<kWhole, T>, grid, dim3(kLongThreads), 0, sorted,
             view<const T>(op.dout), op.scale, view<float>(op.dtable));
    });
  });
}

}  // namespace trainctl::kernels::cuda
