// The softmax of the tensor-core forward kernels: a running maximum and sum for each row, kept by the four
// lanes that hold it. A warp has 16 kM rows; scores [kM][kN] are columns 8 n and following.
#pragma once
#include "kernels/cuda/attention_common.cuh"

namespace trainctl::kernels::cuda {

/// The state of a lane for its rows g and g + 8 of each 16: the scaled maximum so far, and its own share
/// of the sum.
template <int kM>
struct RowState {
  float max[kM][2], sum[kM][2];
};

template <int kM>
__device__ inline void begin_rows(RowState<kM>& state) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
    state.max[m][0] = state.max[m][1] = -INFINITY, state.sum[m][0] = state.sum[m][1] = 0.0f;
}

/// The same for any mask: the first sum is in the state of the first lane of a row.
template <int kM>
__device__ inline void begin_masked_rows(RowState<kM>& state, const HeadScores& of) {
  const float max = of.first_max(kLog2E), sum = threadIdx.x % 4 == 0 ? of.first_sum() : 0.0f;
#pragma unroll
  for (int m = 0; m < kM; ++m) state.max[m][0] = state.max[m][1] = max, state.sum[m][0] = state.sum[m][1] = sum;
}

/// p = exp2(scores * scale2 - new maximum), rounded to bf16 as the left factor of the next product (a lane
/// holds the same elements of both); `out` and the sums so far are rescaled to the new maximum.
template <int kM, int kN, int kOut>
__device__ inline void softmax_step(uint32_t (&p)[kM][kN / 2][4], const float (&scores)[kM][kN][4],
                                    float (&out)[kM][kOut][4], RowState<kM>& state, float scale2) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = scores[m][0][2 * half];
#pragma unroll
      for (int n = 0; n < kN; ++n)
        max = fmaxf(max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, 2));
      max = fmaxf(state.max[m][half], max * scale2);
      const float rescale = fast_exp2(state.max[m][half] - max);
      state.max[m][half] = max;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float low = fast_exp2(fmaf(scores[m][n][2 * half], scale2, -max));
        const float high = fast_exp2(fmaf(scores[m][n][2 * half + 1], scale2, -max));
        sum += low + high;
        p[m][n / 2][n % 2 * 2 + half] = pack_bf16(low, high);
      }
      state.sum[m][half] = state.sum[m][half] * rescale + sum;
#pragma unroll
      for (int n = 0; n < kOut; ++n) {
        out[m][n][2 * half] *= rescale;
        out[m][n][2 * half + 1] *= rescale;
      }
    }
  }
}

/// Scores of keys after the query become -infinity. `distance` = the warp's first query - the tile's first
/// key.
template <int kM, int kN>
__device__ inline void mask_scores(float (&scores)[kM][kN][4], int distance) {
  const int lane = int(threadIdx.x) % kWarpSize, last = distance + lane / 4 - lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = 16 * m + 8 * (i / 2), key = 8 * n + i % 2;  // beside those of the lane
        if (key - query > last) scores[m][n][i] = -INFINITY;
      }
    }
  }
}

/// Divides by the sums, writes a warp's rows of out and lse. `first`: the warp's first row; `valid`: how many
/// of its rows exist; kMasked: a row may have seen no key.
template <int kDim, bool kAligned, bool kMasked = false, int kM>
__device__ inline void finish_rows(const ForwardArguments<bf16_t>& a, const float (&out)[kM][kDim / 8][4],
                                   RowState<kM>& state, bf16_t* staging, int64_t first, int head, int valid) {
  const int lane = int(threadIdx.x) % kWarpSize;
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      factor[m][half] = kMasked && sum == 0.0f ? 0.0f : 1.0f / sum;
      const int row = 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && row < valid)
        a.lse[(first + row) * a.heads + head] = fmaf(state.max[m][half], kLn2, logf(sum));
    }
  }
  store_rows<kDim, kM, kAligned>(out, factor, staging, a.out.at(first, int64_t(head) * kDim), a.out.stride,
                                 valid);
}

}  // namespace trainctl::kernels::cuda
