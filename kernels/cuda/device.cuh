// Building blocks of the CUDA kernels: 16-byte vectors, conversions, and reductions in a fixed order.
//
// They use CUDA's intrinsics. Instructions that CUDA C++ does not provide are in ptx.cuh.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/tensor.h"

namespace trainctl::kernels::cuda {

using bf16_t = __nv_bfloat16;

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

__host__ __device__ constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16_t x) { return __bfloat162float(x); }
template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline bf16_t from_float<bf16_t>(float x) {
  return __float2bfloat16_rn(x);
}

/// 16 bytes of T, moved by one access if aligned.
template <typename T>
struct alignas(16) Vec {
  static constexpr int kLength = 16 / int(sizeof(T));
  T v[kLength];
};
template <typename T>
__device__ inline Vec<T> load_vec(const T* from) {
  return *reinterpret_cast<const Vec<T>*>(from);
}
template <typename T>
__device__ inline void store_vec(T* to, const Vec<T>& x) {
  *reinterpret_cast<Vec<T>*>(to) = x;
}
/// Whether every row of a matrix begins at a multiple of 16 bytes and its length is one, so that load_vec may
/// be used.
inline bool is_vectorizable(const Matrix& m) {
  const size_t size = size_of(m.dtype);
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && (m.rows <= 1 || size_t(m.stride) * size % 16 == 0) &&
         size_t(m.cols) * size % 16 == 0;
}

/// Sum (maximum) over the 32 lanes by a butterfly. Every lane gets the same bits.
__device__ inline float warp_sum(float x) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}
__device__ inline double warp_sum(double x) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

/// Sum over a block of kThreads (a multiple of 32) in an order that depends only on kThreads. Every thread
/// gets the sum. `shared`: kThreads / 32 values. Ends with a barrier, so the caller may use `shared` again at
/// once.
template <int kThreads, typename T>
__device__ inline T block_sum(T x, T* shared) {
  static_assert(kThreads % kWarpSize == 0);
  x = warp_sum(x);
  if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < kThreads / kWarpSize; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

}  // namespace trainctl::kernels::cuda
