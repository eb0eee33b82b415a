// The second step of a sum over many rows. In the first step each block of rows has written one row of
// partial sums; here these rows are added in an order that depends only on their number.
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace trainctl::kernels::cuda {

constexpr int kPartialCols = 32, kPartialRows = 32;

/// Column c of partial [parts, width] goes to first[c] if c < split, otherwise to second[c - split]. A thread
/// adds every kPartialRows-th part; then these sums are added in order.
static __global__ void __launch_bounds__(kPartialCols* kPartialRows)
    add_partials_kernel(const float* partial, int64_t parts, int64_t width, int64_t split, float* first, float* second,
                        bool accumulate) {
  __shared__ float sums[kPartialRows][kPartialCols];
  const int64_t c = int64_t(blockIdx.x) * kPartialCols + threadIdx.x;
  float sum = 0;
  if (c < width) {
#pragma unroll 8
    for (int64_t p = threadIdx.y; p < parts; p += kPartialRows) sum += partial[p * width + c];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= width) return;
#pragma unroll 8
  for (int y = 1; y < kPartialRows; ++y) sum += sums[y][threadIdx.x];
  float* const to = c < split ? first + c : second + (c - split);
  *to = accumulate ? *to + sum : sum;
}

/// first [split] and second [width - split] (+)= the column sums of partial [parts, width].
inline void add_partials(const Queue& queue, const char* op, const float* partial, int64_t parts, int64_t width, int64_t split,
                         float* first, float* second, bool accumulate) {
  launch(queue, op, add_partials_kernel, unsigned(div_up(width, kPartialCols)), dim3(kPartialCols, kPartialRows), 0, partial, parts,
         width, split, first, second, accumulate);
}

}  // namespace trainctl::kernels::cuda
