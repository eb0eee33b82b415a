// Shared parts of the attention kernels: the assignment of tiles to blocks, and building blocks of the
// tensor-core kernels (bf16, head dimensions 64 and 128). Tiles of q, k, v and dout are in shared memory as
// [rows, kDim] bf16 without padding. The 16-byte piece c of row r is stored at piece c ^ (r mod 8), so that
// the eight rows of a matrix load, and the eight pieces of a copy, are in different banks. (Identifiers call
// such a piece a chunk.)
#pragma once
#include <cmath>

#include "kernels/cuda/attention_mask.cuh"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// All heads of a matrix [B*T, heads * D].
template <typename T>
struct HeadsView {
  T* data = nullptr;
  int64_t stride = 0;
  /// Distance of the rows that one thread copies; an argument, because then it needs no register.
  int64_t step_bytes = 0;

  __device__ T* at(int64_t row, int64_t col) const { return data + row * stride + col; }
};
template <typename T>
HeadsView<T> heads_of(const Matrix& m, int64_t rows_at_once) {
  return {static_cast<T*>(m.data), m.stride, rows_at_once * m.stride * int64_t(sizeof(T))};
}

/// Block i processes tile `rank` of `head` (counted over the batch). Rank 0 is the tile with the most work,
/// so the longest tiles begin first. Heads are processed in waves whose keys and values fit into the L2 cache
/// together.
struct Schedule {
  int tiles, heads, heads_per_wave;

  Schedule(int64_t tiles, int64_t heads, int64_t bytes_per_head) : tiles(int(tiles)), heads(int(heads)) {
    constexpr int64_t kCacheBytes = int64_t{24} << 20;
    const int64_t fitting = bytes_per_head > 0 ? kCacheBytes / bytes_per_head : heads;
    heads_per_wave = int(fitting < 1 ? 1 : fitting < heads ? fitting : heads);
  }
  unsigned blocks() const { return unsigned(tiles) * unsigned(heads); }

  struct Work {
    int rank, head;
  };
  __device__ Work operator[](int i) const {
    const int first = i / (tiles * heads_per_wave) * heads_per_wave;
    const int count = min(heads_per_wave, heads - first);
    const int rest = i - first * tiles;
    return {rest / count, first + rest % count};
  }
};

template <typename T>
struct ForwardArguments {
  HeadsView<const T> q, k, v;
  HeadsView<T> out;
  float* lse;
  Schedule schedule;
  int seq_len, heads, group, head_dim;
  float scale, scale2;   ///< scale2 = scale * log2(e)
  DeviceMask mask;
};

template <typename T>
struct BackwardArguments {
  HeadsView<const T> q, k, v, dout;
  HeadsView<T> dq, dk, dv;
  /// [B, H, padded_len] of queries; lse is infinite after the end of a sequence and where no key is seen, so that
  /// P is zero there.
  const float *lse, *delta;
  Schedule schedule;
  int seq_len, padded_len, heads, group, head_dim;
  float scale, scale2;        ///< scale2 = scale * log2(e)
  DeviceMask mask;
};

/// The rows of a sequence in the scratch memory of the backward pass: seq_len rounded up to kAttentionRowPad.
constexpr int64_t padded_seq_len(int64_t seq_len) { return (seq_len + kAttentionRowPad - 1) / kAttentionRowPad * kAttentionRowPad; }

/// Whether the tensor-core kernels support a shape. They need scale > 0, because they take the maximum of the
/// unscaled scores.
inline bool fits_tensor_cores(const AttentionShape& s, DType dtype) {
  return dtype == DType::bf16 && has_tensor_tiles(s.head_dim) && s.scale > 0;
}

/// Whether the warpgroup kernels compute a shape that the tensor cores support: the causal mask, also of
/// queries behind other keys. The other masks have the kernels of every GPU.
inline bool fits_warpgroups(const AttentionShape& s, int compute) {
  return has_warpgroup_products(compute) && s.sees_all_before();
}

// ---- tensor cores
// ---------------------------------------------------------------------------------------------------------------------

/// Where this lane's chunk of an ldmatrix_x4 lies in the 16 x 16 piece at column 0 of a tile, in elements.
/// That of columns 16 k is place ^ (16 k), and stays so when a multiple of 16 rows is added to `place`.
///
/// Pieces of a left factor, or (transposed) of a right factor whose rows are summed over: matrices 0, 1 are
/// rows 0-7, 8-15 of columns 0-7, matrices 2, 3 the same of columns 8-15.
template <int kDim>
__device__ inline int place_down() {
  const int lane = int(threadIdx.x) % kWarpSize;
  return lane % 16 * kDim + ((lane / 16) ^ (lane % 8)) * 8;
}
/// Pieces of a right factor whose columns are summed over: matrices 0, 1 are columns 0-7, 8-15 of rows 0-7;
/// 2, 3 those of rows 8-15.
template <int kDim>
__device__ inline int place_across() {
  const int lane = int(threadIdx.x) % kWarpSize;
  return (lane / 16 * 8 + lane % 8) * kDim + ((lane / 8 % 2) ^ (lane % 8)) * 8;
}

/// Copies consecutive tiles of one head's rows. A thread keeps one address and steps along its own chunks:
/// the addresses of a whole tile would cost the registers that hold sums. A tile is one panel [rows, kDim], or
/// (for wgmma.cuh) kDim / kPanel panels [rows, kPanel] one after another.
template <int kDim, int kThreads, int kPanel = kDim>
struct TileSource {
  static constexpr int kChunks = kDim / 8, kRowsAtOnce = kThreads / kChunks;
  static_assert(kRowsAtOnce % 8 == 0);
  const bf16_t *chunk, *existing;   ///< existing: any address of the matrix, for copies of nothing
  int64_t step_bytes;

  /// From element (row, col) on, which is the first of a head.
  __device__ TileSource(const HeadsView<const bf16_t>& m, int row, int col)
      : chunk(m.at(row + int(threadIdx.x) / kChunks, col + int(threadIdx.x) % kChunks * 8)), existing(m.data),
        step_bytes(m.step_bytes) {}

  /// Asks for the next kRows rows; those from `valid` on become zeros. Without kAligned ordinary loads do it,
  /// at once.
  template <int kRows, bool kAligned>
  __device__ void load(bf16_t* tile, int valid) {
    constexpr int kOfPanel = kPanel / 8;
    const int own = int(threadIdx.x) % kChunks, row = int(threadIdx.x) / kChunks;
    bf16_t* const panel = tile + own / kOfPanel * (kRows * kPanel);
    bf16_t* const to = panel + row * kPanel + (own % kOfPanel ^ row % 8) * 8;
#pragma unroll
    for (int r = 0; r < kRows; r += kRowsAtOnce) {
      if (kRows % kRowsAtOnce != 0 && row + r >= kRows) break;
      const bool exists = row + r < valid;
      if constexpr (kAligned) {
        cp_async16(to + r * kPanel, exists ? chunk : existing, exists);
      } else {
        Vec<bf16_t> copy;
#pragma unroll
        for (int i = 0; i < 8; ++i) copy.v[i] = exists ? chunk[i] : from_float<bf16_t>(0.0f);
        store_vec(to + r * kPanel, copy);
      }
      chunk = reinterpret_cast<const bf16_t*>(reinterpret_cast<const char*>(chunk) + step_bytes);
    }
  }
};

/// c[m] += a[m] b^T over columns 16 k of b: 8 kN rows at `place` (across) of `tiles`.
template <int kDim, int kM, int kN>
__device__ inline void multiply_across(float (&c)[kM][kN][4], const uint32_t (&a)[kM][4], const bf16_t* tiles, int place, int k) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t b[4];
    ldmatrix_x4(b, tiles + (place ^ (16 * k)) + 8 * n * kDim);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      mma_bf16(c[m][n], a[m], b[0], b[1]);
      mma_bf16(c[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

/// c[m] += a[m] b over b's 16 kK rows at `place` (down) of `tiles`.
template <int kDim, int kM, int kK>
__device__ inline void multiply_down(float (&c)[kM][kDim / 8][4], const uint32_t (&a)[kM][kK][4], const bf16_t* tiles, int place) {
#pragma unroll
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, tiles + (place ^ (8 * n)) + 16 * k * kDim);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_bf16(c[m][n], a[m][k], b[0], b[1]);
        mma_bf16(c[m][n + 1], a[m][k], b[2], b[3]);
      }
    }
  }
}

/// The result of one product, rounded to bf16, as the left factor of the next: a lane holds the same elements
/// of both.
template <int kM, int kN>
__device__ inline void round_to_left(uint32_t (&a)[kM][kN / 2][4], const float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
      a[m][k][0] = pack_bf16(c[m][2 * k][0], c[m][2 * k][1]);
      a[m][k][1] = pack_bf16(c[m][2 * k][2], c[m][2 * k][3]);
      a[m][k][2] = pack_bf16(c[m][2 * k + 1][0], c[m][2 * k + 1][1]);
      a[m][k][3] = pack_bf16(c[m][2 * k + 1][2], c[m][2 * k + 1][3]);
    }
  }
}

template <int kM, int kN>
__device__ inline void set_zero(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
    }
  }
}

/// Writes a warp's rows c[m] * factor[m] as bf16, the first `valid` of them. They are turned in `staging`,
/// [16 kM, kDim] of shared memory that no other warp touches, so that each row leaves in accesses of 16
/// bytes.
template <int kDim, int kM, bool kAligned>
__device__ inline void store_rows(const float (&c)[kM][kDim / 8][4], const float (&factor)[kM][2], bf16_t* staging, bf16_t* to,
                                  int64_t stride, int valid) {
  const int lane = int(threadIdx.x) % kWarpSize;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + 8 * half + lane / 4;
        const uint32_t pair = pack_bf16(c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]);
        *reinterpret_cast<uint32_t*>(staging + row * kDim + (n ^ (lane / 4)) * 8 + lane % 4 * 2) = pair;
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = kDim / 8, kStep = kWarpSize / kChunks;
  const int chunk = lane % kChunks;
  for (int row = lane / kChunks; row < 16 * kM && row < valid; row += kStep) {
    const bf16_t* const from = staging + row * kDim + (chunk ^ (row % 8)) * 8;
    bf16_t* const place = to + row * stride + chunk * 8;
    // CUDA's own vector: nvcc takes a Vec<bf16_t> apart here, and writes it in seven pieces.
    if constexpr (kAligned) {
      *reinterpret_cast<uint4*>(place) = *reinterpret_cast<const uint4*>(from);
    } else {
      const Vec<bf16_t> x = load_vec(from);
#pragma unroll
      for (int i = 0; i < 8; ++i) place[i] = x.v[i];
    }
  }
}

}  // namespace trainctl::kernels::cuda
