// Loads and stores groups of neighbouring elements in rows of any length and alignment, and selects a kernel
// by dtype.
#pragma once
#include "kernels/cuda/device.cuh"

namespace trainctl::kernels::cuda {

/// N neighbouring elements as floats.
template <int N>
struct Group {
  float v[N];
};

/// Loads the whole group at `from`, with 16-byte accesses if kAligned.
template <int N, bool kAligned, typename T>
__device__ inline Group<N> load_group(const T* from) {
  constexpr int kLength = Vec<T>::kLength;
  static_assert(N % kLength == 0 || kLength % N == 0);
  Group<N> g;
  if constexpr (kAligned && N % kLength == 0) {
#pragma unroll
    for (int h = 0; h < N; h += kLength) {
      const Vec<T> x = load_vec(from + h);
#pragma unroll
      for (int i = 0; i < kLength; ++i) g.v[h + i] = to_float(x.v[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] = to_float(from[i]);
  }
  return g;
}
/// Loads a group of which only `count` elements exist; the others become `fill`.
template <int N, bool kAligned, typename T>
__device__ inline Group<N> load_group(const T* from, int count, float fill = 0.0f) {
  if (kAligned && count >= N) return load_group<N, kAligned>(from);
  Group<N> g;
#pragma unroll
  for (int i = 0; i < N; ++i) g.v[i] = i < count ? to_float(from[i]) : fill;
  return g;
}

/// Writes a whole group, rounded to T.
template <int N, bool kAligned, typename T>
__device__ inline void store_group(T* to, const Group<N>& g) {
  constexpr int kLength = Vec<T>::kLength;
  if constexpr (kAligned && N % kLength == 0) {
#pragma unroll
    for (int h = 0; h < N; h += kLength) {
      Vec<T> x;
#pragma unroll
      for (int i = 0; i < kLength; ++i) x.v[i] = from_float<T>(g.v[h + i]);
      store_vec(to + h, x);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from_float<T>(g.v[i]);
  }
}
/// Writes the first `count` elements of a group.
template <int N, typename T>
__device__ inline void store_first(T* to, int count, const Group<N>& g) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) to[i] = from_float<T>(g.v[i]);
  }
}

template <typename T>
struct TypeTag {
  using type = T;
};

/// Calls `f` with the tag of an activation dtype:   with_type(m.dtype, [&](auto tag) { using T = typename
/// decltype(tag)::type; ... });
template <typename F>
void with_type(DType dtype, F f) {
  ENSURE(dtype == DType::f32 || dtype == DType::bf16);
  if (dtype == DType::f32) {
    f(TypeTag<float>{});
  } else {
    f(TypeTag<bf16_t>{});
  }
}

}  // namespace trainctl::kernels::cuda
