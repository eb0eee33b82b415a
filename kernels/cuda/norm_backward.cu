// With xhat = (x - mean) rstd and g = dy (weight + offset):   dx = (g - mean(g) - xhat mean(g xhat)) rstd + dresidual,   dweight = sum of dy xhat,
// dbias = sum of dy over the rows. A block owns kNormRowsPerBlock rows, leaves one row of partial sums of both parameters, and those
// are added in order.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/partial_sums.cuh"

namespace trainctl::kernels::cuda {

namespace {

template <typename T>
struct Backward {
  View<const T> dy, x, dresidual;
  View<T> dx;
  const float *weight, *stats;
  float* partial;  ///< [blocks, quantities, C]
  int64_t rows;
  int cols;
  int quantities;  ///< 1: dweight, 2: dweight and dbias
  bool centred;    ///< layernorm
  float offset;    ///< of the weights
};

constexpr int kMostThreads = 512;
constexpr int kGroupThreads = 128;  ///< of a block in which several groups of threads have a row each

__device__ inline int valid_of(int col, int cols, int width) {
  return cols - col < width ? (cols > col ? cols - col : 0) : width;
}

/// Sums over a row, of g and of g xhat.
struct RowSums {
  float g = 0, gx = 0;
};

/// Over the threads of one row (threadIdx.y). `warps`: one value a warp of the block; it must not be
/// reused before the next barrier of the block.
__device__ inline RowSums over_row(RowSums sums, RowSums* warps) {
  sums = {warp_sum(sums.g), warp_sum(sums.gx)};
  if (blockDim.x == kWarpSize) return sums;
  const int per_row = blockDim.x / kWarpSize;
  RowSums* const mine = warps + threadIdx.y * per_row;
  if (threadIdx.x % kWarpSize == 0) mine[threadIdx.x / kWarpSize] = sums;
  __syncthreads();
  sums = {};
  for (int w = 0; w < per_row; ++w) sums.g += mine[w].g, sums.gx += mine[w].gx;
  return sums;
}

/// The part of one row of dy and x that a thread holds.
template <typename T, int N, int kChunks>
struct RowPart {
  Pack<T, N> dy[kChunks], x[kChunks];
  float mean, rstd;
};
template <bool kWhole, typename T, int N, int kChunks>
__device__ inline void load_row(const Backward<T>& p, int64_t row, bool exists, RowPart<T, N, kChunks>& part) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int col = (i * blockDim.x + threadIdx.x) * N, valid = exists ? valid_of(col, p.cols, N) : 0;
    part.dy[i] = load_pack<N, kWhole>(p.dy.at(row, col), valid);
    part.x[i] = load_pack<N, kWhole>(p.x.at(row, col), valid);
  }
  part.mean = exists ? p.stats[2 * row] : 0.0f;
  part.rstd = exists ? p.stats[2 * row + 1] : 0.0f;
}

__device__ inline float xhat_of(float x, float mean, float rstd) { return (x - mean) * rstd; }
__device__ inline float input_gradient(float g, float xhat, float rstd, const RowSums& means, float residual) {
  return fmaf(fmaf(-xhat, means.gx, g - means.g), rstd, residual);
}
__device__ inline RowSums means_of(const RowSums& sums, int cols, bool centred) {
  return {centred ? sums.g / float(cols) : 0.0f, sums.gx / float(cols)};
}

/// The sums of the groups of threads of a block, added in order into those of the first group.
template <int N>
__device__ inline void add_groups(float (&sums)[N], float* shared) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < N; ++j) shared[j * kGroupThreads + thread] = sums[j];
  __syncthreads();
  for (unsigned y = 1; threadIdx.y == 0 && y < blockDim.y; ++y) {
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += shared[j * kGroupThreads + y * blockDim.x + threadIdx.x];
  }
}

template <int N>
__device__ inline void store_partial(float* to, const float (&sums)[N], int valid, bool whole) {
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    const Pack<float, 4> part{{sums[j], sums[j + 1], sums[j + 2], sums[j + 3]}};
    const int rest = valid - j, n = rest < 0 ? 0 : rest < 4 ? rest : 4;
    if (whole) store_pack<true>(to + j, part, n);
    else store_pack<false>(to + j, part, n);
  }
}

/// blockDim.x threads a row, each with kChunks packs of it; blockDim.y rows at a time. The next rows are loaded before the present
/// ones are used.
template <typename T, int kChunks, bool kWhole>
__global__ void __launch_bounds__(kChunks == 1 ? kGroupThreads : kMostThreads) norm_backward_kernel(Backward<T> p) {
  constexpr int N = 16 / int(sizeof(T));
  __shared__ RowSums warps[2][kMostThreads / kWarpSize];
  const int64_t first_row = int64_t(blockIdx.x) * kNormRowsPerBlock + threadIdx.y;
  const int64_t end_row = p.rows < (blockIdx.x + 1) * kNormRowsPerBlock ? p.rows : (blockIdx.x + 1) * kNormRowsPerBlock;
  float dweight[kChunks][N] = {}, dbias[kChunks][N] = {};
  RowPart<T, N, kChunks> now, next;
  load_row<kWhole>(p, first_row, first_row < end_row, next);
  int turn = 0;
  for (int64_t row = first_row; row - threadIdx.y < end_row; row += blockDim.y, turn ^= 1) {
    const bool exists = row < end_row;
    now = next;
    Pack<T, N> residual[kChunks];
    RowSums sums;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = (i * blockDim.x + threadIdx.x) * N;
      residual[i] = load_pack<N, kWhole>(p.dresidual.at(row, col), exists && p.dresidual.data ? valid_of(col, p.cols, N) : 0);
    }
    load_row<kWhole>(p, row + blockDim.y, row + blockDim.y < end_row, next);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = (i * blockDim.x + threadIdx.x) * N;
      const Pack<float, N> weight = load_floats<N, kWhole>(p.weight + col, valid_of(col, p.cols, N));
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float dy = now.dy[i][j], xhat = xhat_of(now.x[i][j], now.mean, now.rstd);
        const float g = __fmul_rn(dy, weight[j] + p.offset);
        sums.g += g;
        sums.gx = fmaf(g, xhat, sums.gx);
        dweight[i][j] = fmaf(dy, xhat, dweight[i][j]);
        dbias[i][j] += dy;
      }
    }
    const RowSums means = means_of(over_row(sums, warps[turn]), p.cols, p.centred);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = (i * blockDim.x + threadIdx.x) * N, valid = exists ? valid_of(col, p.cols, N) : 0;
      const Pack<float, N> weight = load_floats<N, kWhole>(p.weight + col, valid);
      float dx[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float g = __fmul_rn(now.dy[i][j], weight[j] + p.offset);
        const float xhat = xhat_of(now.x[i][j], now.mean, now.rstd);
        dx[j] = input_gradient(g, xhat, now.rstd, means, residual[i][j]);
      }
      Pack<T, N> rounded;
      rounded.set(dx);
      store_pack<kWhole>(p.dx.at(row, col), rounded, valid);
    }
  }
  if constexpr (kChunks == 1) {
    __shared__ float groups[N * kGroupThreads];
    if (blockDim.y > 1) {
      add_groups(dweight[0], groups);
      add_groups(dbias[0], groups);
    }
  }
  if (threadIdx.y > 0) return;
  float* const partial = p.partial + int64_t(blockIdx.x) * p.quantities * p.cols;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int col = (i * blockDim.x + threadIdx.x) * N, valid = valid_of(col, p.cols, N);
    store_partial(partial + col, dweight[i], valid, p.cols % 4 == 0);
    if (p.quantities == 2) store_partial(partial + p.cols + col, dbias[i], valid, p.cols % 4 == 0);
  }
}

constexpr int kWideThreads = 1024;

/// dx of rows too long for registers: a block a row, read twice.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kWideThreads) wide_input_gradient_kernel(Backward<T> p) {
  constexpr int N = 16 / int(sizeof(T));
  __shared__ float warps[kWideThreads / kWarpSize];
  const int64_t row = blockIdx.x;
  const float mean = p.stats[2 * row], rstd = p.stats[2 * row + 1];
  RowSums sums;
  for (int col = threadIdx.x * N; col < p.cols; col += kWideThreads * N) {
    const int valid = valid_of(col, p.cols, N);
    const Pack<T, N> dy = load_pack<N, kWhole>(p.dy.at(row, col), valid), x = load_pack<N, kWhole>(p.x.at(row, col), valid);
    const Pack<float, N> weight = load_floats<N, kWhole>(p.weight + col, valid);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = __fmul_rn(dy[j], weight[j] + p.offset);
      sums.g += g;
      sums.gx = fmaf(g, xhat_of(x[j], mean, rstd), sums.gx);
    }
  }
  sums = {block_sum<kWideThreads>(sums.g, warps), block_sum<kWideThreads>(sums.gx, warps)};
  const RowSums means = means_of(sums, p.cols, p.centred);
  for (int col = threadIdx.x * N; col < p.cols; col += kWideThreads * N) {
    const int valid = valid_of(col, p.cols, N);
    const Pack<T, N> dy = load_pack<N, kWhole>(p.dy.at(row, col), valid), x = load_pack<N, kWhole>(p.x.at(row, col), valid);
    const Pack<T, N> residual = load_pack<N, kWhole>(p.dresidual.at(row, col), p.dresidual.data ? valid : 0);
    const Pack<float, N> weight = load_floats<N, kWhole>(p.weight + col, valid);
    float dx[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = __fmul_rn(dy[j], weight[j] + p.offset), xhat = xhat_of(x[j], mean, rstd);
      dx[j] = input_gradient(g, xhat, rstd, means, residual[j]);
    }
    Pack<T, N> rounded;
    rounded.set(dx);
    store_pack<kWhole>(p.dx.at(row, col), rounded, valid);
  }
}

constexpr int kColumnThreads = 128;

/// The partial sums of those rows: a thread has one pack of columns.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kColumnThreads) wide_parameter_gradient_kernel(Backward<T> p) {
  constexpr int N = 16 / int(sizeof(T));
  const int64_t tiles = div_up(p.cols, kColumnThreads * N), block = blockIdx.x / tiles;
  const int col = int(blockIdx.x % tiles * kColumnThreads + threadIdx.x) * N, valid = valid_of(col, p.cols, N);
  const int64_t first_row = block * kNormRowsPerBlock;
  const int64_t end_row = p.rows < first_row + kNormRowsPerBlock ? p.rows : first_row + kNormRowsPerBlock;
  float dweight[N] = {}, dbias[N] = {};
#pragma unroll 4
  for (int64_t row = first_row; row < end_row; ++row) {
    const Pack<T, N> dy = load_pack<N, kWhole>(p.dy.at(row, col), valid), x = load_pack<N, kWhole>(p.x.at(row, col), valid);
    const float mean = p.stats[2 * row], rstd = p.stats[2 * row + 1];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      dweight[j] = fmaf(dy[j], xhat_of(x[j], mean, rstd), dweight[j]);
      dbias[j] += dy[j];
    }
  }
  float* const partial = p.partial + block * p.quantities * p.cols + col;
  store_partial(partial, dweight, valid, p.cols % 4 == 0);
  if (p.quantities == 2) store_partial(partial + p.cols, dbias, valid, p.cols % 4 == 0);
}

template <typename T, int kChunks, bool kWhole>
void launch_backward(const Queue& queue, const Backward<T>& p, int packs, int64_t blocks) {
  const int threads = int(div_up(div_up(packs, kChunks), kWarpSize)) * kWarpSize;
  int groups = 1;
  while (kChunks == 1 && groups * threads * 2 <= kGroupThreads) groups *= 2;
  launch(queue, "norm_backward", norm_backward_kernel<T, kChunks, kWhole>, unsigned(blocks), dim3(threads, groups), 0, p);
}

/// The layout of a row in registers depends only on its length, and so do the sums.
template <typename T, bool kWhole>
void backward(const Queue& queue, const Backward<T>& p, int64_t blocks) {
  constexpr int N = 16 / int(sizeof(T));
  const int packs = int(div_up(p.cols, N));
  if (packs <= kGroupThreads) return launch_backward<T, 1, kWhole>(queue, p, packs, blocks);
  if (packs <= 2 * kMostThreads) return launch_backward<T, 2, kWhole>(queue, p, packs, blocks);
  launch(queue, "norm_backward", wide_parameter_gradient_kernel<T, kWhole>,
         unsigned(blocks * div_up(p.cols, kColumnThreads * N)), kColumnThreads, 0, p);
  launch(queue, "norm_backward", wide_input_gradient_kernel<T, kWhole>, unsigned(p.rows), kWideThreads, 0, p);
}

}  // namespace

void enqueue(const Queue& queue, const NormBackward& op, void* scratch) {
  const int64_t blocks = div_up(op.x.rows, kNormRowsPerBlock);
  const int quantities = op.dbias ? 2 : 1;
  const auto partial = static_cast<float*>(scratch);
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    bool whole = is_pack_aligned(op.weight, 4);
    for (const Matrix& m : {op.dy, op.x, op.dresidual, op.dx}) whole = whole && is_whole(m, 16 / int(sizeof(T)));
    const Backward<T> p{view_of<const T>(op.dy), view_of<const T>(op.x), view_of<const T>(op.dresidual),
                        view_of<T>(op.dx), op.weight.as<float>(), op.stats, partial, op.x.rows, int(op.x.cols),
                        quantities, op.kind == NormKind::layernorm, exact_offset(op.weight_offset)};
    if (whole) backward<T, true>(queue, p, blocks);
    else backward<T, false>(queue, p, blocks);
  });
  add_partials(queue, "norm_backward", partial, blocks, quantities * op.x.cols, op.x.cols,
               op.dweight.as<float>(), op.dbias.as<float>(), op.accumulate);
}

}  // namespace trainctl::kernels::cuda
