// C (+)= A B for the tiles of attention. B and C are row-major f32 with columns padded to whole vectors. A is
// read one number at a time with any two strides, so a transpose costs nothing. Each element of C is summed
// over k in order, independent of the tiling.
#pragma once
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {
namespace {

// The tile of C that stays in registers, with a row of B and a number of A: there are 32 zmm, 16 ymm or 16 xmm.
constexpr int kTileRows = 6;
constexpr int kTileRegisters = kRegisters == 1 ? 4 : 2;

/// Element (r, k) is data[r * row_stride + k * k_stride].
struct Strided {
  const float* data;
  int64_t row_stride, k_stride;
};

struct Tile {
  float* data;
  int64_t stride;
};

template <int R, int N>
void product_tile(int64_t k_count, Strided a, const float* b, int64_t b_stride, Tile c, bool accumulate) {
  const auto at = [](float* p) -> RegisterUnaligned& { return *reinterpret_cast<RegisterUnaligned*>(p); };
  Register sum[R][N];
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < N; ++j) {
      sum[r][j] = accumulate ? Register(at(c.data + r * c.stride + j * kRegisterLanes)) : Register{};
    }
  }
  for (int64_t k = 0; k < k_count; ++k) {
    Register right[N];
    for (int j = 0; j < N; ++j) {
      right[j] = *reinterpret_cast<const RegisterUnaligned*>(b + k * b_stride + j * kRegisterLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Register left = a.data[r * a.row_stride + k * a.k_stride] - Register{};
      for (int j = 0; j < N; ++j) {
        sum[r][j] = fma(left, right[j], sum[r][j]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < N; ++j) {
      at(c.data + r * c.stride + j * kRegisterLanes) = sum[r][j];
    }
  }
}

template <int N>
void product_columns(int64_t rows, int64_t k_count, Strided a, const float* b, int64_t b_stride, Tile c,
                     bool accumulate) {
  int64_t r = 0;
  const auto rest = [&] { return Strided{a.data + r * a.row_stride, a.row_stride, a.k_stride}; };
  const auto out = [&] { return Tile{c.data + r * c.stride, c.stride}; };
  for (; r + kTileRows <= rows; r += kTileRows) {
    product_tile<kTileRows, N>(k_count, rest(), b, b_stride, out(), accumulate);
  }
  for (; r + 2 <= rows; r += 2) {
    product_tile<2, N>(k_count, rest(), b, b_stride, out(), accumulate);
  }
  if (r < rows) {
    product_tile<1, N>(k_count, rest(), b, b_stride, out(), accumulate);
  }
}

/// C[rows, vectors * 16] (+)= A[rows, k_count] B[k_count, vectors * 16]
inline void small_product(int64_t rows, int64_t vectors, int64_t k_count, Strided a, const float* b, int64_t b_stride,
                          Tile c, bool accumulate) {
  const int64_t registers = vectors * kRegisters;
  const auto columns = [&](int64_t j) { return Tile{c.data + j * kRegisterLanes, c.stride}; };
  int64_t j = 0;
  for (; j + kTileRegisters <= registers; j += kTileRegisters) {
    product_columns<kTileRegisters>(rows, k_count, a, b + j * kRegisterLanes, b_stride, columns(j), accumulate);
  }
  for (; j < registers; ++j) {
    product_columns<1>(rows, k_count, a, b + j * kRegisterLanes, b_stride, columns(j), accumulate);
  }
}

}  // namespace
}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
