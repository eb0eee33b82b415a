// Building blocks of attention without tensor cores: f32 tiles in shared memory, 256 threads as 16 x 16. Head
// dimensions are padded with zeros to kDims = 64, 128 or 256; attention_tiles.h chooses the rows of a tile.
// Thread (ty, tx) owns rows ty * kOwn.. of the left factor, rows tx + 16 j of the right factor, and columns 4
// tx + 64 c of results [kTile, kDims].
#pragma once
#include "kernels/cuda/attention_common.cuh"

namespace trainctl::kernels::cuda {

constexpr int kPlainThreads = 256;

template <int kDimsOfTiles, int kRowsOfTiles>
struct Plain {
  static constexpr int kDims = kDimsOfTiles;
  static constexpr int kTile = kRowsOfTiles;            ///< queries of a tile; also keys of a tile
  static constexpr int kOwn = kTile / 16;               ///< rows per thread
  static constexpr int kColumns = kDims / 64;           ///< groups of four columns per thread
  static constexpr int kRow = kDims + 4, kScoreRow = kTile + 4;
  static constexpr int kTileFloats = plain_tile_floats(kDims, kTile), kScoreFloats = plain_score_floats(kTile);
  static_assert(kTileFloats == kTile * kRow && kScoreFloats == kTile * kScoreRow);

  using Scores = float[kOwn][kOwn];
  using Sums = float[kOwn][kColumns][4];

  /// Loads rows [0, valid) of one head as f32; fills the rest of the tile with zeros.
  template <typename T>
  __device__ static void load(float* tile, const T* from, int64_t stride, int valid, int head_dim) {
    const int warp = int(threadIdx.x) / kWarpSize, lane = int(threadIdx.x) % kWarpSize;
    for (int row = warp; row < kTile; row += kPlainThreads / kWarpSize) {
#pragma unroll
      for (int d = lane; d < kDims; d += kWarpSize) {
        tile[row * kRow + d] = row < valid && d < head_dim ? to_float(from[row * stride + d]) : 0.0f;
      }
    }
  }
  /// s[r][j] = left row (ty * kOwn + r) . right row (tx + 16 j)
  __device__ static void multiply_rows(Scores& s, const float* left, const float* right, int head_dim) {
    const int ty = int(threadIdx.x) / 16, tx = int(threadIdx.x) % 16;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) s[r][j] = 0.0f;
    }
    for (int d = 0; d < head_dim; d += 4) {
      Vec<float> a[kOwn], b[kOwn];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) a[r] = load_vec(left + (ty * kOwn + r) * kRow + d);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) b[j] = load_vec(right + (tx + 16 * j) * kRow + d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
#pragma unroll
          for (int j = 0; j < kOwn; ++j) s[r][j] += a[r].v[i] * b[j].v[i];
        }
      }
    }
  }
  /// Stores a thread's scores for multiply_scores.
  __device__ static void store_scores(float* scores, const Scores& s) {
    const int ty = int(threadIdx.x) / 16, tx = int(threadIdx.x) % 16;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) scores[(ty * kOwn + r) * kScoreRow + tx + 16 * j] = s[r][j];
    }
  }
  /// sums += scores [kTile, kTile] right [kTile, kDims]
  __device__ static void multiply_scores(Sums& sums, const float* scores, const float* right) {
    const int ty = int(threadIdx.x) / 16, tx = int(threadIdx.x) % 16;
#pragma unroll 4
    for (int k = 0; k < kTile; k += 4) {
      Vec<float> p[kOwn];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) p[r] = load_vec(scores + (ty * kOwn + r) * kScoreRow + k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const Vec<float> b = load_vec(right + (k + i) * kRow + 64 * c + 4 * tx);
#pragma unroll
          for (int r = 0; r < kOwn; ++r) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[r][c][e] += p[r].v[i] * b.v[e];
          }
        }
      }
    }
  }
  __device__ static void set_zero(Sums& sums) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[r][c][e] = 0.0f;
      }
    }
  }
  /// Writes sums * factor[r], the first `valid` rows of the tile.
  template <typename T>
  __device__ static void store(const Sums& sums, const float (&factor)[kOwn], T* to, int64_t stride, int valid, int head_dim) {
    const int ty = int(threadIdx.x) / 16, tx = int(threadIdx.x) % 16;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int row = ty * kOwn + r;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int d = 64 * c + 4 * tx + e;
          if (row < valid && d < head_dim) to[row * stride + d] = from_float<T>(sums[r][c][e] * factor[r]);
        }
      }
    }
  }
};

/// Calls `f` with the Plain<kDims, kTile>() for plain_tile(). A shape whose widest tile fits on every GPU is
/// compiled only with that tile.
template <PlainPass kPass, int kDims, typename F>
void with_plain_tile(size_t most_shared_bytes, F f) {
  constexpr int kWidest = plain_widest_tile(kDims);
  if constexpr (plain_tile(kPass, kDims, kLeastSharedBytes) == kWidest) {
    f(Plain<kDims, kWidest>());
  } else {
    static_assert(plain_bytes(kPass, kDims, kWidest / 2) <= kLeastSharedBytes);
    if (plain_tile(kPass, kDims, most_shared_bytes) == kWidest) {
      f(Plain<kDims, kWidest>());
    } else {
      f(Plain<kDims, kWidest / 2>());
    }
  }
}
template <PlainPass kPass, typename F>
void with_plain(int64_t head_dim, size_t most_shared_bytes, F f) {
  ENSURE(head_dim <= kMostPlainDim);
  switch (plain_dims(head_dim)) {
    case 64: return with_plain_tile<kPass, 64>(most_shared_bytes, f);
    case 128: return with_plain_tile<kPass, 128>(most_shared_bytes, f);
    default: with_plain_tile<kPass, 256>(most_shared_bytes, f);
  }
}

}  // namespace trainctl::kernels::cuda
