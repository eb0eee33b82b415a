// Computes the values per row of scores that the gradient of attention needs: lse, and delta = sum_d out *
// dout, as rows [B, H, T] padded to whole tiles.
#pragma once
#include "kernels/cuda/attention_common.cuh"

namespace trainctl::kernels::cuda {

constexpr int kDeltaThreads = 256, kLanesPerRow = 8;

template <typename T>
struct DeltaArguments {
  HeadsView<const T> out, dout;
  const float* lse;   ///< [B*T, H]
  float *lse_rows, *delta;
  int64_t rows;       ///< B * H * padded_len
  int seq_len, padded_len, heads, head_dim;
  float lse_factor;
};

/// A lane's share of sum_d out * dout: eight lanes per row of a head, 16 bytes each if aligned. Each lane adds
/// the same elements with any alignment.
template <typename T, bool kAligned>
__device__ inline float delta_share(const T* out, const T* dout, int head_dim, int lane) {
  constexpr int N = Vec<T>::kLength;
  float sum = 0.0f;
  for (int d = lane * N; d < head_dim; d += kLanesPerRow * N) {
    if (kAligned && d + N <= head_dim) {
      const Vec<T> x = load_vec(out + d), y = load_vec(dout + d);
#pragma unroll
      for (int j = 0; j < N; ++j) sum = fmaf(to_float(x.v[j]), to_float(y.v[j]), sum);
    } else {
      for (int j = 0; j < N && d + j < head_dim; ++j) sum = fmaf(to_float(out[d + j]), to_float(dout[d + j]), sum);
    }
  }
  return sum;
}
/// The sum of the lanes of a row.
__device__ inline float add_lanes(float sum) {
  for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  return sum;
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kDeltaThreads) delta_kernel(DeltaArguments<T> a) {
  const int64_t i = (int64_t(blockIdx.x) * kDeltaThreads + threadIdx.x) / kLanesPerRow;
  const int lane = int(threadIdx.x) % kLanesPerRow;
  const int t = int(i % a.padded_len), head = int(i / a.padded_len % a.heads);
  const int64_t row = i / a.padded_len / a.heads * a.seq_len + t, col = int64_t(head) * a.head_dim;
  const bool exists = i < a.rows && t < a.seq_len;
  const float sum =
      add_lanes(exists ? delta_share<T, kAligned>(a.out.at(row, col), a.dout.at(row, col), a.head_dim, lane) : 0.0f);
  if (lane == 0 && i < a.rows) {
    a.delta[i] = sum;
    const float lse = exists ? a.lse[row * a.heads + head] : INFINITY;
    a.lse_rows[i] = lse == -INFINITY ? INFINITY : lse * a.lse_factor;   // a query that sees no key: P is zero
  }
}

}  // namespace trainctl::kernels::cuda
