// How the ops of experts give rows and tokens their places in order.
#pragma once
#include "kernels/cuda/launch.cuh"

namespace trainctl::kernels::cuda {

constexpr int kMoeThreads = 256;

/// Counts at offsets[1..] become the ends of each one's rows.
static __global__ void offsets_kernel(int count, int32_t* offsets) {
  offsets[0] = 0;
  for (int i = 0; i < count; ++i) offsets[i + 1] += offsets[i];
}

/// Of a block's threads, of which `yes` is true: how many there are, and how many of them are before this
/// one.
struct PlaceAmong {
  int before, all;
};
__device__ inline PlaceAmong place_among(bool yes, int (*sums)[kMoeThreads]) {
  const int thread = int(threadIdx.x);
  int in = 0;
  sums[in][thread] = yes;
  __syncthreads();
  for (int width = 1; width < kMoeThreads; width *= 2, in = 1 - in) {
    sums[1 - in][thread] = sums[in][thread] + (thread >= width ? sums[in][thread - width] : 0);
    __syncthreads();
  }
  const PlaceAmong place{sums[in][thread] - int(yes), sums[in][kMoeThreads - 1]};
  __syncthreads();
  return place;
}

}  // namespace trainctl::kernels::cuda
