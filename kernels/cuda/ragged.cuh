// Rows of any length and alignment in groups of neighbouring elements, and the choice of a kernel by dtype.
#pragma once
#include "kernels/cuda/device.cuh"

namespace trainctl::kernels::cuda {

/// N neighbouring elements as floats.
template <int N>
struct Group {
  float v[N];
};

/// The group at `from`, of which `count` elements exist; the others are `fill`. kAligned: `from` stands on 16 bytes, so that a whole
/// group is moved by 16-byte accesses.
template <int N, bool kAligned, typename T>
__device__ inline Group<N> load_group(const T* from, int count, float fill = 0.0f) {
  static_assert(N % Vec<T>::kLength == 0 || Vec<T>::kLength % N == 0);
  Group<N> g;
  if constexpr (kAligned && N % Vec<T>::kLength == 0) {
    if (count >= N) {
#pragma unroll
      for (int h = 0; h < N; h += Vec<T>::kLength) {
        const Vec<T> x = load_vec(from + h);
#pragma unroll
        for (int i = 0; i < Vec<T>::kLength; ++i) g.v[h + i] = to_float(x.v[i]);
      }
      return g;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) g.v[i] = i < count ? to_float(from[i]) : fill;
  return g;
}

/// Writes the first `count` elements of a group, rounded to T.
template <int N, bool kAligned, typename T>
__device__ inline void store_group(T* to, int count, const Group<N>& g) {
  if constexpr (kAligned && N % Vec<T>::kLength == 0) {
    if (count >= N) {
#pragma unroll
      for (int h = 0; h < N; h += Vec<T>::kLength) {
        Vec<T> x;
#pragma unroll
        for (int i = 0; i < Vec<T>::kLength; ++i) x.v[i] = from_float<T>(g.v[h + i]);
        store_vec(to + h, x);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) to[i] = from_float<T>(g.v[i]);
  }
}

/// Whether every row of a matrix begins on 16 bytes, however long it is.
inline bool rows_aligned(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && (m.rows <= 1 || size_t(m.stride) * size_of(m.dtype) % 16 == 0);
}

template <typename T>
struct TypeTag {
  using type = T;
};

/// Calls `f` with the tag of an activation dtype:   with_type(m.dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... });
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
