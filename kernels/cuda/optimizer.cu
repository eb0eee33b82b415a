// The updates of parameters and the sums of the step, over tiles of all boxes at once: one block a tile.
#include <algorithm>
#include <climits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ragged.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 4;   ///< 16 bytes of f32

__device__ inline bool stands_on(const void* p, int bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// ---- AdamW
// ----------------------------------------------------------------------------------------------------------------------
// Each operation is rounded once, in the order of the contract: the intrinsics keep the compiler from fusing
// any two.

struct Weight {
  float master, first_moment, second_moment;
};

__device__ inline Weight adamw_of(Weight x, float grad, float lr, float decay, const AdamWStep& s) {
  const float g = __fmul_rn(grad, s.grad_scale);
  const float m = __fadd_rn(__fmul_rn(s.beta1, x.first_moment), __fmul_rn(__fsub_rn(1.0f, s.beta1), g));
  const float v = __fadd_rn(__fmul_rn(s.beta2, x.second_moment), __fmul_rn(__fsub_rn(1.0f, s.beta2), __fmul_rn(g, g)));
  const float decayed = __fsub_rn(x.master, __fmul_rn(decay, x.master));
  const float numerator = __fmul_rn(lr, __fdiv_rn(m, s.bias_correction1));
  const float denominator = __fadd_rn(__fsqrt_rn(__fdiv_rn(v, s.bias_correction2)), s.eps);
  return {__fsub_rn(decayed, __fdiv_rn(numerator, denominator)), m, v};
}

/// A tile in packs of N neighbours in a row; the tile's width is a multiple of N and every pack is aligned
/// to its size.
template <int N, typename T>
__device__ inline void adamw_tile(const UpdateBox& box, const Tile& tile, const AdamWStep& step) {
  using Floats = Pack<float, N>;
  const int64_t cols = box.param.cols, grad_stride = box.grad_stride, param_stride = box.param.stride;
  float* const master = box.master + tile.row * cols + tile.col;
  float* const first_moment = static_cast<float*>(box.first_moment) + tile.row * cols + tile.col;
  float* const second_moment = static_cast<float*>(box.second_moment) + tile.row * cols + tile.col;
  const float* const grad = box.grad + tile.row * grad_stride + tile.col;
  T* const param = static_cast<T*>(box.param.data) + tile.row * param_stride + tile.col;
  const float lr = __fmul_rn(step.lr, box.lr_scale), decay = __fmul_rn(lr, box.weight_decay);
  const int packs_per_row = tile.cols / N, packs = tile.rows * packs_per_row;
  for (int i = int(threadIdx.x); i < packs; i += kThreads) {
    const int64_t r = i / packs_per_row, c = int64_t(i % packs_per_row) * N;
    const int64_t at = r * cols + c;
    const Floats g = *reinterpret_cast<const Floats*>(grad + r * grad_stride + c);
    Floats w = *reinterpret_cast<const Floats*>(master + at);
    Floats m = *reinterpret_cast<const Floats*>(first_moment + at);
    Floats v = *reinterpret_cast<const Floats*>(second_moment + at);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Weight next = adamw_of({w.v[k], m.v[k], v.v[k]}, g.v[k], lr, decay, step);
      w.v[k] = next.master;
      m.v[k] = next.first_moment;
      v.v[k] = next.second_moment;
    }
    *reinterpret_cast<Floats*>(master + at) = w;
    *reinterpret_cast<Floats*>(first_moment + at) = m;
    *reinterpret_cast<Floats*>(second_moment + at) = v;
    Pack<T, N> p;
    p.set(w.v);
    *reinterpret_cast<Pack<T, N>*>(param + r * param_stride + c) = p;
  }
}

template <typename T>
__device__ inline void adamw_box_tile(const UpdateBox& box, const Tile& tile, const AdamWStep& step) {
  const bool one_row = box.param.rows == 1;
  const bool whole = tile.cols % kGroup == 0 && tile.col % kGroup == 0 &&
                     (one_row || (box.param.cols % kGroup == 0 && box.grad_stride % kGroup == 0 && box.param.stride % kGroup == 0));
  if (whole && stands_on(box.master, 16) && stands_on(box.first_moment, 16) && stands_on(box.second_moment, 16) &&
      stands_on(box.grad, 16) && stands_on(box.param.data, kGroup * int(sizeof(T)))) {
    adamw_tile<kGroup, T>(box, tile, step);
  } else {
    adamw_tile<1, T>(box, tile, step);
  }
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(const UpdateBox* boxes, const Tile* tiles, AdamWStep step) {
  const Tile tile = tiles[blockIdx.x];
  const UpdateBox box = boxes[tile.box];
  if (box.param.dtype == DType::f32) {
    adamw_box_tile<float>(box, tile, step);
  } else {
    adamw_box_tile<bf16_t>(box, tile, step);
  }
}

// ---- rules with one moment
// ------------------------------------------------------------------------------------------------------ As
// above: each operation is rounded once. A rule changes the master weight and the moment of one element.

struct LionRule {
  LionStep step;
  __device__ void operator()(float& w, float& m, float grad, float lr, float decay) const {
    const float g = __fmul_rn(grad, step.grad_scale);
    const float direction = __fadd_rn(__fmul_rn(step.beta1, m), __fmul_rn(__fsub_rn(1.0f, step.beta1), g));
    const float u = direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : 0.0f;
    w = __fsub_rn(w, __fmul_rn(decay, w));
    w = __fsub_rn(w, __fmul_rn(lr, u));
    m = __fadd_rn(__fmul_rn(step.beta2, m), __fmul_rn(__fsub_rn(1.0f, step.beta2), g));
  }
};

struct SgdRule {
  SgdStep step;
  __device__ void operator()(float& w, float& m, float grad, float lr, float decay) const {
    m = __fadd_rn(__fmul_rn(step.momentum, m), __fmul_rn(grad, step.grad_scale));
    w = __fsub_rn(w, __fmul_rn(decay, w));
    w = __fsub_rn(w, __fmul_rn(lr, m));
  }
};

/// As adamw_tile.
template <int N, typename T, typename Rule>
__device__ inline void one_moment_tile(const UpdateBox& box, const Tile& tile, const Rule& rule) {
  using Floats = Pack<float, N>;
  const int64_t cols = box.param.cols, grad_stride = box.grad_stride, param_stride = box.param.stride;
  float* const master = box.master + tile.row * cols + tile.col;
  float* const moment = static_cast<float*>(box.first_moment) + tile.row * cols + tile.col;
  const float* const grad = box.grad + tile.row * grad_stride + tile.col;
  T* const param = static_cast<T*>(box.param.data) + tile.row * param_stride + tile.col;
  const float lr = __fmul_rn(rule.step.lr, box.lr_scale), decay = __fmul_rn(lr, box.weight_decay);
  const int packs_per_row = tile.cols / N, packs = tile.rows * packs_per_row;
  for (int i = int(threadIdx.x); i < packs; i += kThreads) {
    const int64_t r = i / packs_per_row, c = int64_t(i % packs_per_row) * N;
    const int64_t at = r * cols + c;
    const Floats g = *reinterpret_cast<const Floats*>(grad + r * grad_stride + c);
    Floats w = *reinterpret_cast<const Floats*>(master + at);
    Floats m = *reinterpret_cast<const Floats*>(moment + at);
#pragma unroll
    for (int k = 0; k < N; ++k) rule(w.v[k], m.v[k], g.v[k], lr, decay);
    *reinterpret_cast<Floats*>(master + at) = w;
    *reinterpret_cast<Floats*>(moment + at) = m;
    Pack<T, N> p;
    p.set(w.v);
    *reinterpret_cast<Pack<T, N>*>(param + r * param_stride + c) = p;
  }
}

template <typename T, typename Rule>
__device__ inline void one_moment_box_tile(const UpdateBox& box, const Tile& tile, const Rule& rule) {
  const bool one_row = box.param.rows == 1;
  const bool whole = tile.cols % kGroup == 0 && tile.col % kGroup == 0 &&
                     (one_row || (box.param.cols % kGroup == 0 && box.grad_stride % kGroup == 0 && box.param.stride % kGroup == 0));
  if (whole && stands_on(box.master, 16) && stands_on(box.first_moment, 16) && stands_on(box.grad, 16) &&
      stands_on(box.param.data, kGroup * int(sizeof(T)))) {
    one_moment_tile<kGroup, T>(box, tile, rule);
  } else {
    one_moment_tile<1, T>(box, tile, rule);
  }
}

template <typename Rule>
__global__ void __launch_bounds__(kThreads) one_moment_kernel(const UpdateBox* boxes, const Tile* tiles, Rule rule) {
  const Tile tile = tiles[blockIdx.x];
  const UpdateBox box = boxes[tile.box];
  if (box.param.dtype == DType::f32) {
    one_moment_box_tile<float>(box, tile, rule);
  } else {
    one_moment_box_tile<bf16_t>(box, tile, rule);
  }
}

/// A thread for each value of a box.
__global__ void __launch_bounds__(kThreads) balance_kernel(UpdateBox box, BalanceStep step) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= box.param.rows * box.param.cols) return;
  const int64_t r = i / box.param.cols, c = i % box.param.cols;
  const float count = box.grad[r * box.grad_stride + c];
  const float change = double(count) < step.mean ? step.rate : double(count) > step.mean ? -step.rate : 0.0f;
  box.master[i] = __fadd_rn(box.master[i], change);
  static_cast<float*>(box.param.data)[r * box.param.stride + c] = box.master[i];
}

// ---- moments in fewer bits
// ------------------------------------------------------------------------------------------------------ A
// warp has a block of kMomentBlock values, lane i the values i, i + 32, ...: kernels/moments.h in the same
// order of operations.

constexpr int kLaneValues = int(kMomentBlock) / kWarpSize;

__device__ inline uint32_t noise_of(float x, uint32_t salt) {
  uint32_t h = __float_as_uint(x) + salt;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

template <bool kSigned>
struct Codes {
  static constexpr int kMost = kSigned ? 127 : 255;
  __device__ static float size_of(int q, float scale) {
    const float t = __fdiv_rn(float(q), float(kMost)), square = __fmul_rn(t, t);
    return __fmul_rn(scale, __fmul_rn(square, square));
  }
  __device__ static float value(uint8_t byte, float scale) {
    if (!kSigned) return size_of(byte, scale);
    const int q = int8_t(byte);
    return q < 0 ? -size_of(-q, scale) : size_of(q, scale);
  }
  __device__ static uint8_t code(float x, float scale, uint32_t salt) {
    const float size = fabsf(x);
    if (!(size > 0.0f) || !(scale > 0.0f)) return 0;
    const float place = __fmul_rn(__fsqrt_rn(__fsqrt_rn(__fdiv_rn(size, scale))), float(kMost));
    int q = min(max(int(place), 0), kMost - 1);
    const float below = size_of(q, scale), above = size_of(q + 1, scale);
    const float chance = __fdiv_rn(__fsub_rn(size, below), __fsub_rn(above, below));
    if (float(noise_of(x, salt) >> 8) * 0x1p-24f < chance) ++q;
    if (!kSigned && q == 0) q = 1;
    return uint8_t(x < 0.0f ? -q : q);
  }
};

__device__ inline uint16_t bf16_moment(float x, uint32_t salt) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7f800000u) == 0x7f800000u) return uint16_t((u >> 16) | ((u & 0x7fffffu) != 0 ? 0x40u : 0u));
  return uint16_t((u + (noise_of(x, salt) & 0xffffu)) >> 16);
}

/// The values of a lane of a block that begins at `begin` and has `n`.
template <Moments kFormat, bool kSigned>
struct LaneMoments {
  float v[kLaneValues];

  __device__ void read(const void* moments, const float* scales, int64_t begin, int n, int lane) {
    const float scale = kFormat == Moments::int8 ? scales[begin / kMomentBlock] : 0.0f;
#pragma unroll
    for (int k = 0; k < kLaneValues; ++k) {
      const int i = lane + k * kWarpSize;
      if (i >= n) {
        v[k] = 0.0f;
      } else if (kFormat == Moments::bf16) {
        v[k] = __uint_as_float(uint32_t(static_cast<const uint16_t*>(moments)[begin + i]) << 16);
      } else {
        v[k] = Codes<kSigned>::value(static_cast<const uint8_t*>(moments)[begin + i], scale);
      }
    }
  }
  /// Called by whole warps.
  __device__ void write(void* moments, float* scales, int64_t begin, int n, int lane, uint32_t update) const {
    float scale = 0.0f;
    if (kFormat == Moments::int8) {
#pragma unroll
      for (int k = 0; k < kLaneValues; ++k) scale = fmaxf(scale, fabsf(v[k]));
      scale = warp_max(scale);
      if (lane == 0) scales[begin / kMomentBlock] = scale;
    }
#pragma unroll
    for (int k = 0; k < kLaneValues; ++k) {
      const int i = lane + k * kWarpSize;
      if (i >= n) continue;
      if (kFormat == Moments::bf16) {
        static_cast<uint16_t*>(moments)[begin + i] = bf16_moment(v[k], rounding_salt(update, i));
      } else {
        static_cast<uint8_t*>(moments)[begin + i] = Codes<kSigned>::code(v[k], scale, rounding_salt(update, i));
      }
    }
  }
};

struct AdamWRule {
  static constexpr bool kTwoMoments = true;
  AdamWStep step;
  __device__ void operator()(float& w, float& m, float& v, float grad, float lr, float decay) const {
    const Weight next = adamw_of({w, m, v}, grad, lr, decay, step);
    w = next.master, m = next.first_moment, v = next.second_moment;
  }
};

/// A rule with one moment, with a second that it does not have.
template <typename Rule>
struct OneMoment : Rule {
  static constexpr bool kTwoMoments = false;
  __device__ void operator()(float& w, float& m, float&, float grad, float lr, float decay) const {
    Rule::operator()(w, m, grad, lr, decay);
  }
};

template <Moments kFormat, typename T, typename Rule>
__device__ inline void update_block(const UpdateBox& box, int64_t block, const Rule& rule) {
  const int lane = int(threadIdx.x) % kWarpSize;
  const int64_t cols = box.param.cols, count = box.param.rows * cols, begin = block * kMomentBlock;
  const int n = int(count - begin < kMomentBlock ? count - begin : kMomentBlock);
  const float lr = __fmul_rn(rule.step.lr, box.lr_scale), decay = __fmul_rn(lr, box.weight_decay);
  LaneMoments<kFormat, true> m;
  LaneMoments<kFormat, false> v;
  m.read(box.first_moment, box.first_scales, begin, n, lane);
  if (Rule::kTwoMoments) v.read(box.second_moment, box.second_scales, begin, n, lane);
  int64_t row = (begin + lane) / cols, col = (begin + lane) % cols;
#pragma unroll
  for (int k = 0; k < kLaneValues; ++k) {
    const int i = lane + k * kWarpSize;
    if (i < n) {
      float w = box.master[begin + i];
      rule(w, m.v[k], v.v[k], box.grad[row * box.grad_stride + col], lr, decay);
      box.master[begin + i] = w;
      static_cast<T*>(box.param.data)[row * box.param.stride + col] = from_float<T>(w);
    }
    for (col += kWarpSize; col >= cols; col -= cols) ++row;
  }
  m.write(box.first_moment, box.first_scales, begin, n, lane, rule.step.update);
  if (Rule::kTwoMoments) v.write(box.second_moment, box.second_scales, begin, n, lane, rule.step.update);
}

/// The rows of a tile are blocks.
template <Moments kFormat, typename Rule>
__global__ void __launch_bounds__(kThreads) blocks_kernel(const UpdateBox* boxes, const Tile* tiles, Rule rule) {
  const Tile tile = tiles[blockIdx.x];
  const UpdateBox box = boxes[tile.box];
  for (int r = int(threadIdx.x) / kWarpSize; r < tile.rows; r += kThreads / kWarpSize) {
    if (box.param.dtype == DType::f32) {
      update_block<kFormat, float>(box, tile.row + r, rule);
    } else {
      update_block<kFormat, bf16_t>(box, tile.row + r, rule);
    }
  }
}

// ---- sums in double
// -------------------------------------------------------------------------------------------------------------

/// Thread i adds the groups i, i + kThreads, ... of four neighbours in a row: an order fixed by the tile's
/// shape.
template <bool kAligned>
__device__ inline double square_sum_of(const float* x, int64_t stride, int rows, int cols) {
  const int groups_per_row = (cols + kGroup - 1) / kGroup, groups = rows * groups_per_row;
  double sum = 0;
#pragma unroll 4
  for (int i = int(threadIdx.x); i < groups; i += kThreads) {
    const int r = i / groups_per_row, c = i % groups_per_row * kGroup;
    const Group<kGroup> g = load_group<kGroup, kAligned>(x + r * stride + c, cols - c);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) sum += double(g.v[k]) * double(g.v[k]);
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads) square_sums_kernel(const Matrix* boxes, const Tile* tiles, double* partial) {
  __shared__ double shared[kThreads / kWarpSize];
  const Tile tile = tiles[blockIdx.x];
  const Matrix box = boxes[tile.box];
  const float* x = static_cast<const float*>(box.data) + tile.row * box.stride + tile.col;
  const bool aligned = stands_on(x, 16) && (tile.rows == 1 || box.stride % kGroup == 0);
  const double own = aligned ? square_sum_of<true>(x, box.stride, tile.rows, tile.cols)
                             : square_sum_of<false>(x, box.stride, tile.rows, tile.cols);
  const double sum = block_sum<kThreads>(own, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// The sum of x[begin, end) by a block: thread i adds begin + i, begin + i + kThreads, ...; every thread
/// gets the sum.
template <typename T>
__device__ inline double block_sum_of(const T* x, int64_t begin, int64_t end, double* shared) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) sum += double(x[i]);
  return block_sum<kThreads>(sum, shared);
}

__global__ void __launch_bounds__(kThreads) box_sums_kernel(const double* partial, const int64_t* first_tile, double* out) {
  __shared__ double shared[kThreads / kWarpSize];
  const double sum = block_sum_of(partial, first_tile[blockIdx.x], first_tile[blockIdx.x + 1], shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

/// Block b: out[b] = the sum of x[b * chunk, (b + 1) * chunk) of n.
template <typename T>
__global__ void __launch_bounds__(kThreads) chunk_sums_kernel(const T* x, int64_t n, int64_t chunk, double* out) {
  __shared__ double shared[kThreads / kWarpSize];
  const int64_t begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  const double sum = block_sum_of(x, begin, end, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

}  // namespace

std::vector<Tile> tiles_of(std::span<const Matrix> boxes) {
  ENSURE(boxes.size() <= size_t(INT_MAX));
  std::vector<Tile> tiles;
  for (size_t box = 0; box < boxes.size(); ++box) {
    const int64_t rows = boxes[box].rows, cols = boxes[box].cols;
    if (rows == 0 || cols == 0) continue;
    // A row that is too long is cut into even parts that begin on 16 bytes; rows of the same part are put
    // together up to the size.
    const int64_t width = div_up(div_up(cols, div_up(cols, kOptimizerTileElements)), kGroup) * kGroup;
    const int64_t most_rows = std::max<int64_t>(1, kOptimizerTileElements / std::min(width, cols));
    const int64_t height = div_up(rows, div_up(rows, most_rows));
    for (int64_t row = 0; row < rows; row += height) {
      for (int64_t col = 0; col < cols; col += width) {
        tiles.push_back({int32_t(box), int32_t(std::min(height, rows - row)), int32_t(std::min(width, cols - col)), row, col});
      }
    }
  }
  return tiles;
}

namespace {

/// Launches the kernel for the moments' format; `plain` is the one for f32.
template <typename Rule, typename Plain, typename Of>
void launch_update(const Queue& queue, const char* name, const UpdateBox* boxes, const Tile* tiles, int64_t count, Moments moments,
                   const Rule& rule, Plain plain, const Of& of) {
  ENSURE(count <= INT_MAX);
  const dim3 grid(static_cast<unsigned>(count)), threads(kThreads);
  switch (moments) {
    case Moments::f32: launch(queue, name, plain, grid, threads, 0, boxes, tiles, of); break;
    case Moments::bf16: launch(queue, name, blocks_kernel<Moments::bf16, Rule>, grid, threads, 0, boxes, tiles, rule); break;
    case Moments::int8: launch(queue, name, blocks_kernel<Moments::int8, Rule>, grid, threads, 0, boxes, tiles, rule); break;
  }
}

}  // namespace

void adamw(const Queue& queue, const UpdateBox* device_boxes, const Tile* device_tiles, int64_t tiles, Moments moments,
           const AdamWStep& step) {
  launch_update(queue, "adamw", device_boxes, device_tiles, tiles, moments, AdamWRule{step}, adamw_kernel, step);
}

void lion(const Queue& queue, const UpdateBox* device_boxes, const Tile* device_tiles, int64_t tiles, Moments moments,
          const LionStep& step) {
  launch_update(queue, "lion", device_boxes, device_tiles, tiles, moments, OneMoment<LionRule>{{step}}, one_moment_kernel<LionRule>,
                LionRule{step});
}

void sgd(const Queue& queue, const UpdateBox* device_boxes, const Tile* device_tiles, int64_t tiles, Moments moments,
         const SgdStep& step) {
  launch_update(queue, "sgd", device_boxes, device_tiles, tiles, moments, OneMoment<SgdRule>{{step}}, one_moment_kernel<SgdRule>,
                SgdRule{step});
}

void enqueue(const Queue& queue, const Balance& op) {
  for (const UpdateBox& box : op.boxes) {
    if (box.param.count() == 0) continue;
    launch(queue, "balance", balance_kernel, dim3(unsigned(div_up(box.param.count(), kThreads))), dim3(kThreads), 0, box, op.step);
  }
}

void sum_squares(const Queue& queue, const Matrix* device_boxes, int64_t boxes, const Tile* device_tiles, int64_t tiles,
                 const int64_t* device_first_tile, double* partial, double* out) {
  ENSURE(tiles <= INT_MAX && boxes <= INT_MAX);
  launch(queue, "sum_squares", square_sums_kernel, dim3(unsigned(tiles)), dim3(kThreads), 0, device_boxes, device_tiles, partial);
  launch(queue, "sum_squares", box_sums_kernel, dim3(unsigned(boxes)), dim3(kThreads), 0, partial, device_first_tile, out);
}

void sum(const Queue& queue, const float* x, int64_t n, double* out, void* scratch) {
  const int64_t chunks = div_up(n, kSumChunk);
  ENSURE(chunks <= INT_MAX);
  auto* const partial = static_cast<double*>(scratch);
  launch(queue, "sum", chunk_sums_kernel<float>, dim3(unsigned(chunks)), dim3(kThreads), 0, x, n, kSumChunk, partial);
  launch(queue, "sum", chunk_sums_kernel<double>, dim3(1), dim3(kThreads), 0, partial, chunks, chunks, out);
}

}  // namespace trainctl::kernels::cuda
