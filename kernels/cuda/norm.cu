#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

/// Pack i of thread `lane` out of `threads` that share a row: its first column, and how many of its elements exist.
__device__ inline int col_of(int i, int threads, int lane, int width) { return (i * threads + lane) * width; }
__device__ inline int valid_of(int col, int cols, int width) {
  return cols - col < width ? (cols > col ? cols - col : 0) : width;
}

/// The one formula of both norms; fmaf keeps its bits the same wherever it is inlined.
__device__ inline float normalised(float x, float mean, float rstd, float weight, float bias) {
  return fmaf((x - mean) * rstd, weight, bias);
}

template <typename T, int N, bool kWhole>
__device__ inline Pack<T, N> normalised(const Pack<T, N>& x, float mean, float rstd, const float* weight, float offset, const float* bias,
                                        int valid) {
  const Pack<float, N> w = load_floats<N, kWhole>(weight, valid);
  Pack<float, N> b{};
  if (bias) b = load_floats<N, kWhole>(bias, valid);
  float values[N];
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = normalised(x[j], mean, rstd, w[j] + offset, b[j]);
  Pack<T, N> y;
  y.set(values);
  return y;
}

template <typename T>
struct Forward {
  View<const T> x, delta;
  View<T> sum, y;
  const float *weight, *bias;
  float* stats;
  int64_t rows;
  int cols;
  float eps, offset;
  bool centred;  ///< layernorm
};

/// Sum over the kThreads threads of one row.
template <int kThreads>
__device__ inline float row_sum(float x) {
  if constexpr (kThreads == kWarpSize) {
    return warp_sum(x);
  } else {
    __shared__ float warps[kThreads / kWarpSize];
    return block_sum<kThreads>(x, warps);
  }
}

template <typename T, int N>
__device__ inline Pack<T, N> added(const Pack<T, N>& x, const Pack<T, N>& delta) {
  float values[N];
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = x[j] + delta[j];
  Pack<T, N> sum;
  sum.set(values);
  return sum;
}
template <typename T, int N>
__device__ inline float sum_of(const Pack<T, N>& x) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) sum += x[j];
  return sum;
}
template <typename T, int N>
__device__ inline float squares_of(const Pack<T, N>& x, float mean, int valid) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float d = j < valid ? x[j] - mean : 0.0f;
    sum = fmaf(d, d, sum);
  }
  return sum;
}

template <int kThreads>
constexpr int kRowsPerBlock = kThreads < 128 ? 128 / kThreads : 1;

/// kThreads threads a row, which keep it in kChunks packs each; kChunks = 0 reads rows of any length again from memory.
template <typename T, int kThreads, int kChunks, bool kWhole>
__global__ void __launch_bounds__(kThreads* kRowsPerBlock<kThreads>) norm_forward_kernel(Forward<T> p) {
  constexpr int N = 16 / int(sizeof(T));
  constexpr bool kKept = kChunks > 0;
  const int64_t row = int64_t(blockIdx.x) * kRowsPerBlock<kThreads> + threadIdx.x / kThreads;
  if (row >= p.rows) return;
  const int lane = threadIdx.x % kThreads;
  const int chunks = kKept ? kChunks : int(div_up(p.cols, kThreads * N));
  const bool adds = p.delta.data != nullptr;
  const T* const source = adds ? p.sum.at(row, 0) : p.x.at(row, 0);
  Pack<T, N> kept[kKept ? kChunks : 1] = {};
  const auto pack_at = [&](int i, int col, int valid) {
    if constexpr (kKept) return kept[i];
    else return load_pack<N, kWhole>(source + col, valid);
  };

  float total = 0;
#pragma unroll
  for (int i = 0; i < chunks; ++i) {
    const int col = col_of(i, kThreads, lane, N), valid = valid_of(col, p.cols, N);
    Pack<T, N> x = load_pack<N, kWhole>(p.x.at(row, col), valid);
    if (adds) x = added(x, load_pack<N, kWhole>(p.delta.at(row, col), valid));
    if (!kKept && adds) store_pack<kWhole>(p.sum.at(row, col), x, valid);
    if (kKept) kept[kKept ? i : 0] = x;
    total += sum_of(x);
  }
  if (kKept && adds) {  // after all loads, because a store between them would delay them
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      const int col = col_of(i, kThreads, lane, N);
      store_pack<kWhole>(p.sum.at(row, col), kept[kKept ? i : 0], valid_of(col, p.cols, N));
    }
  }
  const float mean = p.centred ? row_sum<kThreads>(total) / float(p.cols) : 0.0f;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < chunks; ++i) {
    const int col = col_of(i, kThreads, lane, N), valid = valid_of(col, p.cols, N);
    squares += squares_of(pack_at(i, col, valid), mean, valid);
  }
  const float rstd = 1.0f / sqrtf(row_sum<kThreads>(squares) / float(p.cols) + p.eps);
  if (lane == 0) p.stats[2 * row] = mean, p.stats[2 * row + 1] = rstd;
#pragma unroll
  for (int i = 0; i < chunks; ++i) {
    const int col = col_of(i, kThreads, lane, N), valid = valid_of(col, p.cols, N);
    const float* const bias = p.bias ? p.bias + col : nullptr;
    store_pack<kWhole>(p.y.at(row, col), normalised<T, N, kWhole>(pack_at(i, col, valid), mean, rstd, p.weight + col, p.offset, bias, valid),
                         valid);
  }
}

template <typename T, int kThreads, int kChunks>
void launch_forward(const Queue& queue, const Forward<T>& p, bool whole) {
  const auto kernel = whole ? norm_forward_kernel<T, kThreads, kChunks, true> : norm_forward_kernel<T, kThreads, kChunks, false>;
  constexpr int rows = kRowsPerBlock<kThreads>;
  launch(queue, "norm_forward", kernel, unsigned(div_up(p.rows, rows)), unsigned(kThreads * rows), 0, p);
}

template <typename T>
void forward(const Queue& queue, const Forward<T>& p, bool whole) {
  const int64_t packs = div_up(p.cols, 16 / int(sizeof(T)));
  if (packs <= 64) return launch_forward<T, 32, 2>(queue, p, whole);
  if (packs <= 128) return launch_forward<T, 32, 4>(queue, p, whole);
  if (packs <= 512) return launch_forward<T, 128, 4>(queue, p, whole);
  if (packs <= 1024) return launch_forward<T, 256, 4>(queue, p, whole);
  if (packs <= 2048) return launch_forward<T, 512, 4>(queue, p, whole);
  launch_forward<T, 1024, 0>(queue, p, whole);
}

constexpr int kApplyUnroll = 2;

template <typename T, bool kWhole>
__global__ void __launch_bounds__(kElementThreads) norm_apply_kernel(View<const T> x, const float* stats, const float* weight,
                                                                     float offset, const float* bias, View<T> y, Walk walk) {
  constexpr int N = 16 / int(sizeof(T));
  Place places[kApplyUnroll];
  Pack<T, N> packs[kApplyUnroll];
#pragma unroll
  for (int u = 0; u < kApplyUnroll; ++u) {
    places[u] = walk[(int64_t(blockIdx.x) * kApplyUnroll + u) * kElementThreads + threadIdx.x];
    packs[u] = load_pack<N, kWhole>(x.at(places[u].row, places[u].col), places[u].valid);
  }
#pragma unroll
  for (int u = 0; u < kApplyUnroll; ++u) {
    const auto [row, col, valid] = places[u];
    if (valid == 0) continue;
    const float mean = stats[2 * row], rstd = stats[2 * row + 1];
    store_pack<kWhole>(y.at(row, col),
                         normalised<T, N, kWhole>(packs[u], mean, rstd, weight + col, offset, bias ? bias + col : nullptr, valid), valid);
  }
}

}  // namespace

void enqueue(const Queue& queue, const NormForward& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    bool whole = true;
    for (const Matrix& m : {op.x, op.delta, op.delta ? op.sum : Matrix{}, op.y})
      whole = whole && is_whole(m, 16 / int(sizeof(T)));
    for (const Matrix& m : {op.weight, op.bias}) whole = whole && is_pack_aligned(m, 4);
    const Forward<T> p{view_of<const T>(op.x), view_of<const T>(op.delta), view_of<T>(op.sum), view_of<T>(op.y),
                       op.weight.as<float>(), op.bias.as<float>(), op.stats, op.x.rows, int(op.x.cols), op.eps, exact_offset(op.weight_offset),
                       op.kind == NormKind::layernorm};
    forward(queue, p, whole);
  });
}

void enqueue(const Queue& queue, const NormApply& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWidth = 16 / int(sizeof(T));
    const bool whole = is_whole(op.x, kWidth) && is_whole(op.y, kWidth) && is_pack_aligned(op.weight, 4) &&
                         is_pack_aligned(op.bias, 4);
    const Walk walk(op.x.rows, op.x.cols, kWidth);
    launch(queue, "norm_apply", whole ? norm_apply_kernel<T, true> : norm_apply_kernel<T, false>,
           unsigned(div_up(walk.packs, kElementThreads * kApplyUnroll)), kElementThreads, 0,
           view_of<const T>(op.x), op.stats, op.weight.as<float>(), exact_offset(op.weight_offset), op.bias.as<float>(),
           view_of<T>(op.y), walk);
  });
}

}  // namespace trainctl::kernels::cuda
