// Elementwise kernels over matrices of one shape, each with its own stride. If all rows are aligned, a kernel
// moves packs of neighbouring elements by accesses of at most 16 bytes; otherwise it moves single elements.
#pragma once
#include <initializer_list>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace trainctl::kernels::cuda {

/// N neighbouring elements, moved by one access if aligned. They are kept as in memory, two bf16 in a word,
/// and converted at their use, because compilers would give each 16-bit element its own register.
template <typename T, int N>
struct Pack;
template <int N>
struct alignas(4 * N) Pack<float, N> {
  float v[N];

  __device__ float operator[](int j) const { return v[j]; }
  __device__ void set(const float (&x)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = x[j];
  }
  __device__ void load_first(const float* from, int valid) {
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = j < valid ? from[j] : 0.0f;
  }
  __device__ void store_first(float* to, int valid) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < valid) to[j] = v[j];
    }
  }
};
template <int N>
struct alignas(2 * N) Pack<bf16_t, N> {
  uint32_t word[N / 2];

  __device__ float operator[](int j) const { return __uint_as_float(j % 2 == 0 ? word[j / 2] << 16 : word[j / 2] & 0xffff0000u); }
  __device__ void set(const float (&x)[N]) {
#pragma unroll
    for (int w = 0; w < N / 2; ++w) word[w] = pack_bf16(x[2 * w], x[2 * w + 1]);
  }
  __device__ void load_first(const bf16_t* from, int valid) {
    const auto bits = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
    for (int w = 0; w < N / 2; ++w) {
      word[w] = (2 * w < valid ? bits[2 * w] : 0u) | uint32_t(2 * w + 1 < valid ? bits[2 * w + 1] : 0u) << 16;
    }
  }
  __device__ void store_first(bf16_t* to, int valid) const {
    const auto bits = reinterpret_cast<uint16_t*>(to);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < valid) bits[j] = uint16_t(word[j / 2] >> j % 2 * 16);
    }
  }
};
template <>
struct Pack<bf16_t, 1> {
  uint16_t bits;

  __device__ float operator[](int) const { return __uint_as_float(uint32_t(bits) << 16); }
  __device__ void set(const float (&x)[1]) { bits = uint16_t(pack_bf16(x[0], 0.0f)); }
  __device__ void load_first(const bf16_t* from, int valid) { bits = valid ? *reinterpret_cast<const uint16_t*>(from) : 0; }
  __device__ void store_first(bf16_t* to, int valid) const {
    if (valid) *reinterpret_cast<uint16_t*>(to) = bits;
  }
};

/// The first `valid` elements at `from`, followed by zeros. kWhole: packs are aligned, and each pack exists
/// completely or not at all.
template <int N, bool kWhole, typename T>
__device__ inline Pack<T, N> load_pack(const T* from, int valid) {
  Pack<T, N> pack{};
  if constexpr (kWhole) {
    if (valid == N) pack = *reinterpret_cast<const Pack<T, N>*>(from);
  } else {
    pack.load_first(from, valid);
  }
  return pack;
}
template <bool kWhole, int N, typename T>
__device__ inline void store_pack(T* to, const Pack<T, N>& pack, int valid) {
  if constexpr (kWhole) {
    if (valid == N) *reinterpret_cast<Pack<T, N>*>(to) = pack;
  } else {
    pack.store_first(to, valid);
  }
}
/// N floats, 16 bytes at a time: what belongs to a pack of N activations.
template <int N, bool kWhole>
__device__ inline Pack<float, N> load_floats(const float* from, int valid) {
  static_assert(N % 4 == 0);
  if constexpr (!kWhole || N == 4) {
    return load_pack<N, kWhole>(from, valid);
  } else {
    Pack<float, N> floats;
#pragma unroll
    for (int j = 0; j < N; j += 4) {
      const Pack<float, 4> part = load_pack<4, true>(from + j, valid == N ? 4 : 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) floats.v[j + i] = part.v[i];
    }
    return floats;
  }
}

/// A matrix as an argument of a kernel.
template <typename T>
struct View {
  T* data = nullptr;
  int64_t stride = 0;

  __device__ T* at(int64_t row, int64_t col) const { return data + row * stride + col; }
};
template <typename T>
View<T> view_of(const Matrix& m) {
  return {static_cast<T*>(m.data), m.stride};
}

/// Whether every row of `m` begins at a multiple of the size of a pack of n elements.
inline bool is_pack_aligned(const Matrix& m, int n) {
  const size_t bytes = size_t(n) * size_of(m.dtype);
  return reinterpret_cast<uintptr_t>(m.data) % bytes == 0 && (m.rows <= 1 || size_t(m.stride) * size_of(m.dtype) % bytes == 0);
}
/// Whether, in addition, every row consists of whole packs.
inline bool is_whole(const Matrix& m, int n) { return is_pack_aligned(m, n) && m.cols % n == 0; }

/// The position of a pack, and the number of its elements that exist (0 after the last row).
struct Place {
  int64_t row, col;
  int valid;
};

/// The packs of a [rows, cols] matrix, counted row by row.
struct Walk {
  int64_t rows, cols, packs_per_row, packs;
  int width;

  Walk(int64_t rows, int64_t cols, int width)
      : rows(rows), cols(cols), packs_per_row(div_up(cols, width)), packs(rows * packs_per_row), width(width) {}

  __device__ Place operator[](int64_t i) const {
    if (i >= packs) return {0, 0, 0};
    int64_t row = 0;  // a division of 32 bits is several times cheaper, none at all cheaper still
    if (rows > 1) row = packs <= 0xffffffff ? int64_t(uint32_t(i) / uint32_t(packs_per_row)) : i / packs_per_row;
    const int64_t col = (i - row * packs_per_row) * width;
    return {row, col, int(cols - col < width ? cols - col : width)};
  }
  /// Whether all packs before `end` exist completely. Only the last pack of a single row may be incomplete.
  __device__ bool whole(int64_t end) const { return end * width <= (rows == 1 ? cols : packs * width); }
};

/// An offset of weights as kernels add it: where it is 0 it changes no bit, not even the sign of a zero.
inline float exact_offset(float offset) { return offset == 0 ? -0.0f : offset; }

constexpr int kElementThreads = 256;

/// An Op has types In and Out, views in[kInputs] and out[kOutputs], and computes the outputs of one element
/// in f32: op(const float (&)[kInputs], float (&)[kOutputs]); or, where kMovesBits, out = in. All of a
/// thread's inputs are read before its first output is written, so an output may be an input.
template <bool kWhole, int kWidth, int kUnroll, typename Op>
__device__ inline void each_element(const Op& op, const Walk& walk, int64_t first) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  Place places[kUnroll];
  Pack<In, kWidth> in[kUnroll][Op::kInputs];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    places[u] = walk[first + u * kElementThreads];
    if (kWhole) places[u].valid = kWidth;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      in[u][i] = load_pack<kWidth, kWhole>(op.in[i].at(places[u].row, places[u].col), places[u].valid);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const auto [row, col, valid] = places[u];
    if constexpr (Op::kMovesBits) {
      static_assert(Op::kInputs == 1 && Op::kOutputs == 1);
      store_pack<kWhole>(op.out[0].at(row, col), in[u][0], valid);
    } else {
      float to[Op::kOutputs][kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        float x[Op::kInputs], y[Op::kOutputs];
#pragma unroll
        for (int i = 0; i < Op::kInputs; ++i) x[i] = in[u][i][j];
        op(x, y);
#pragma unroll
        for (int i = 0; i < Op::kOutputs; ++i) to[i][j] = y[i];
      }
#pragma unroll
      for (int i = 0; i < Op::kOutputs; ++i) {
        Pack<Out, kWidth> out;
        out.set(to[i]);
        store_pack<kWhole>(op.out[i].at(row, col), out, valid);
      }
    }
  }
}

template <typename Op, int kWidth, int kUnroll>
__global__ void __launch_bounds__(kElementThreads) each_element_kernel(Op op, Walk walk) {
  const int64_t begin = int64_t(blockIdx.x) * kUnroll * kElementThreads;
  if (walk.whole(begin + kUnroll * kElementThreads)) each_element<true, kWidth, kUnroll>(op, walk, begin + threadIdx.x);
  else each_element<false, kWidth, kUnroll>(op, walk, begin + threadIdx.x);
}

/// Applies `op` to every element. `matrices`: the matrices of op.in and op.out. Contiguous matrices are
/// processed as one long row.
template <typename Op>
void for_each_element(const Queue& queue, const char* name, const Op& op, std::initializer_list<Matrix> matrices) {
  constexpr int kWidth = 16 / int(sizeof(typename Op::In) > sizeof(typename Op::Out) ? sizeof(typename Op::In)
                                                                                      : sizeof(typename Op::Out));
  constexpr int kUnroll = Op::kInputs == 1 ? 4 : 2;
  bool contiguous = true, aligned = true;
  for (const Matrix& m : matrices) contiguous = contiguous && m.contiguous();
  int64_t rows = matrices.begin()->rows, cols = matrices.begin()->cols;
  if (contiguous) cols *= rows, rows = 1;
  for (const Matrix& m : matrices) {
    aligned = aligned && is_pack_aligned({m.data, m.dtype, rows, cols, m.stride}, kWidth) && (rows == 1 || cols % kWidth == 0);
  }
  if (rows * cols == 0) return;
  if (aligned) {
    const Walk walk(rows, cols, kWidth);
    const auto blocks = unsigned(div_up(walk.packs, kElementThreads * kUnroll));
    launch(queue, name, each_element_kernel<Op, kWidth, kUnroll>, blocks, kElementThreads, 0, op, walk);
  } else {
    constexpr int kSingles = 8;
    const Walk walk(rows, cols, 1);
    const auto blocks = unsigned(div_up(walk.packs, kElementThreads * kSingles));
    launch(queue, name, each_element_kernel<Op, 1, kSingles>, blocks, kElementThreads, 0, op, walk);
  }
}

/// Calls `f` with a null pointer to the element type of an activation dtype.
template <typename F>
void with_activation_type(DType dtype, F f) {
  dtype == DType::f32 ? f(static_cast<float*>(nullptr)) : f(static_cast<bf16_t*>(nullptr));
}

}  // namespace trainctl::kernels::cuda
