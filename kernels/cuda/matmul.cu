#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/partial_sums.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kWarps = 8;

/// One block sums kColumnSumRowsPerBlock rows of 32 packs of N columns: warp w the rows w, w + kWarps, ...; then the warps' sums are
/// added in order.   dy [M, C], partial [blocks of rows, C]
template <typename T, int N, bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarpSize) column_sum_kernel(View<const T> dy, int64_t rows, int64_t cols, float* partial) {
  __shared__ float sums[kWarps][kWarpSize * N];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t tiles = div_up(cols, kWarpSize * N), tile = blockIdx.x % tiles, block = blockIdx.x / tiles;
  const int64_t col = (tile * kWarpSize + lane) * N, first_row = block * kColumnSumRowsPerBlock;
  const int valid = col >= cols ? 0 : int(cols - col < N ? cols - col : N);
  const int held = int(rows - first_row < kColumnSumRowsPerBlock ? rows - first_row : kColumnSumRowsPerBlock);
  float sum[N] = {};
#pragma unroll 8
  for (int r = warp; r < held; r += kWarps) {
    const Pack<T, N> pack = load_pack<N, kWhole>(dy.at(first_row + r, col), valid);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += pack[j];
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[warp][j * kWarpSize + lane] = sum[j];  // neighbouring lanes, neighbouring banks
  __syncthreads();
  for (int i = threadIdx.x; i < kWarpSize * N; i += kWarps * kWarpSize) {
    const int64_t c = tile * kWarpSize * N + i;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[w][i % N * kWarpSize + i / N];
    if (c < cols) partial[block * cols + c] = total;
  }
}

}  // namespace

void column_sum(const Queue& queue, Matrix dy, Matrix dbias, bool accumulate, void* scratch) {
  const auto partial = static_cast<float*>(scratch);
  const int64_t parts = div_up(dy.rows, kColumnSumRowsPerBlock);
  with_activation_type(dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWidth = 16 / int(sizeof(T));
    const auto kernel = is_whole(dy, kWidth) ? column_sum_kernel<T, kWidth, true> : column_sum_kernel<T, kWidth, false>;
    launch(queue, "column_sum", kernel, unsigned(parts * div_up(dy.cols, kWarpSize * kWidth)), kWarps * kWarpSize, 0,
           view_of<const T>(dy), dy.rows, dy.cols, partial);
  });
  add_partials(queue, "column_sum", partial, parts, dy.cols, dy.cols, dbias.as<float>(), nullptr, accumulate);
}

}  // namespace trainctl::kernels::cuda
