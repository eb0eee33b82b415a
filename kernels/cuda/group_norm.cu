// RMSNorm of groups of columns: heads of some dozens to some hundreds of columns, or whole rows. Up to 32 lanes share a group, a power
// of two that its width decides, and so do the sums: no bit depends on how many groups or rows there are, but for the weight's gradient.
#include <climits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/partial_sums.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kGroupThreads = 256;

/// The groups of a matrix, counted row by row, and the lanes that share one.
struct GroupWalk {
  int items, groups, group, lanes;

  GroupWalk(const Matrix& x, int64_t group, int width)
      : items(int(x.rows * (x.cols / group))), groups(int(x.cols / group)), group(int(group)), lanes(1) {
    ENSURE(x.rows * (x.cols / group) <= INT_MAX && group <= INT_MAX / 2);
    while (lanes < kWarpSize && lanes * width < group) lanes *= 2;
  }
  int slots() const { return kGroupThreads / lanes; }

  __device__ int lane() const { return int(threadIdx.x) % lanes; }
  __device__ int slot() const { return int(threadIdx.x) / lanes; }
  /// Sum over the lanes of a group; every lane of the warp takes part.
  __device__ float sum(float x) const {
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
    return x;
  }
  __device__ int valid(int col, int width, bool exists) const {
    const int rest = exists ? group - col : 0;
    return rest < 0 ? 0 : rest < width ? rest : width;
  }
  /// Column `col` of group `item`.
  template <typename T>
  __device__ T* at(const View<T>& m, int item, int col) const {
    const int row = item / groups;
    return m.at(row, int64_t(item - row * groups) * group + col);
  }
};

struct Rstd {
  const float* sums;
  float count, eps;
  __device__ float operator()(int item) const { return 1.0f / sqrtf(sums[item] / count + eps); }
};

template <typename T, bool kWhole>
__global__ void __launch_bounds__(kGroupThreads) group_norm_sums_kernel(View<const T> x, GroupWalk walk, float* sums) {
  constexpr int N = 16 / int(sizeof(T));
  const int item = int(blockIdx.x) * (kGroupThreads / walk.lanes) + walk.slot();
  const bool exists = item < walk.items;
  float sum = 0;
#pragma unroll 4
  for (int col = walk.lane() * N; col < walk.group; col += walk.lanes * N) {
    const Pack<T, N> v = load_pack<N, kWhole>(walk.at(x, exists ? item : 0, col), walk.valid(col, N, exists));
#pragma unroll
    for (int j = 0; j < N; ++j) sum = fmaf(v[j], v[j], sum);
  }
  sum = walk.sum(sum);
  if (exists && walk.lane() == 0) sums[item] = sum;
}

template <typename T, bool kWhole>
__global__ void __launch_bounds__(kGroupThreads)
    group_norm_dots_kernel(View<const T> dy, View<const T> x, GroupWalk walk, const float* weight, float offset, float* dots) {
  constexpr int N = 16 / int(sizeof(T));
  const int item = int(blockIdx.x) * (kGroupThreads / walk.lanes) + walk.slot();
  const bool exists = item < walk.items;
  float sum = 0;
#pragma unroll 2
  for (int col = walk.lane() * N; col < walk.group; col += walk.lanes * N) {
    const int valid = walk.valid(col, N, exists);
    const Pack<T, N> d = load_pack<N, kWhole>(walk.at(dy, exists ? item : 0, col), valid);
    const Pack<T, N> v = load_pack<N, kWhole>(walk.at(x, exists ? item : 0, col), valid);
    const Pack<float, N> w = load_floats<N, kWhole>(weight + col, valid);
#pragma unroll
    for (int j = 0; j < N; ++j) sum = fmaf(__fmul_rn(d[j], w[j] + offset), v[j], sum);
  }
  sum = walk.sum(sum);
  if (exists && walk.lane() == 0) dots[item] = sum;
}

template <typename T, bool kWhole>
__global__ void __launch_bounds__(kGroupThreads)
    group_norm_apply_kernel(View<const T> x, GroupWalk walk, Rstd rstd_of, const float* weight, float offset, View<T> y) {
  constexpr int N = 16 / int(sizeof(T));
  const int item = int(blockIdx.x) * (kGroupThreads / walk.lanes) + walk.slot();
  if (item >= walk.items) return;
  const float rstd = rstd_of(item);
#pragma unroll 2
  for (int col = walk.lane() * N; col < walk.group; col += walk.lanes * N) {
    const int valid = walk.valid(col, N, true);
    const Pack<T, N> v = load_pack<N, kWhole>(walk.at(x, item, col), valid);
    const Pack<float, N> w = load_floats<N, kWhole>(weight + col, valid);
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = v[j] * rstd * (w[j] + offset);
    Pack<T, N> out;
    out.set(values);
    store_pack<kWhole>(walk.at(y, item, col), out, valid);
  }
}

template <typename T>
struct GroupBackward {
  View<const T> dy, x;
  View<T> dx;
  Rstd rstd;
  const float *dots, *weight;
  float offset;
  float* partial;   ///< [blocks, group]
  int block_items;  ///< groups that a block sums
};

/// A block has some of the groups and, of each, the columns of blockIdx.y; a thread has one pack of columns.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kGroupThreads) group_norm_backward_kernel(GroupBackward<T> p, GroupWalk walk) {
  constexpr int N = 16 / int(sizeof(T));
  __shared__ float sums[N * kGroupThreads];
  const int slots = kGroupThreads / walk.lanes, col = (int(blockIdx.y) * walk.lanes + walk.lane()) * N;
  const int first = int(blockIdx.x) * p.block_items;
  const int end = walk.items - first < p.block_items ? walk.items : first + p.block_items;
  const int valid = walk.valid(col, N, true);
  Pack<float, N> weight = load_floats<N, kWhole>(p.weight + col, valid);
#pragma unroll
  for (int j = 0; j < N; ++j) weight.v[j] += p.offset;
  float dweight[N] = {};
#pragma unroll 1
  for (int item = first + walk.slot(); item < end; item += slots) {
    const Pack<T, N> dy = load_pack<N, kWhole>(walk.at(p.dy, item, col), valid), x = load_pack<N, kWhole>(walk.at(p.x, item, col), valid);
    const float rstd = p.rstd(item), of_x = rstd * rstd * rstd * p.dots[item] / p.rstd.count;
    float dx[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      dweight[j] = fmaf(dy[j], x[j] * rstd, dweight[j]);
      dx[j] = fmaf(-x[j], of_x, rstd * (dy[j] * weight[j]));
    }
    Pack<T, N> rounded;
    rounded.set(dx);
    store_pack<kWhole>(walk.at(p.dx, item, col), rounded, valid);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[j * kGroupThreads + threadIdx.x] = dweight[j];
  __syncthreads();
  if (walk.slot() > 0) return;
  float* const partial = p.partial + int64_t(blockIdx.x) * walk.group + col;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float sum = 0;
    for (int thread = walk.lane(); thread < kGroupThreads; thread += walk.lanes) sum += sums[j * kGroupThreads + thread];
    if (j < valid) partial[j] = sum;
  }
}

/// Calls f(null pointer to T, bool_constant of whether groups are made of whole, aligned packs, a walk of them).
template <typename F>
void over_groups(const Matrix& x, int64_t group, std::initializer_list<Matrix> others, F f) {
  with_activation_type(x.dtype, [&](auto* type) {
    constexpr int kWidth = 16 / int(sizeof(*type));
    bool whole = group % kWidth == 0 && is_pack_aligned(x, kWidth);
    for (const Matrix& m : others) whole = whole && is_pack_aligned(m, 16 / int(size_of(m.dtype)));
    const GroupWalk walk(x, group, kWidth);
    if (whole) f(type, std::true_type{}, walk);
    else f(type, std::false_type{}, walk);
  });
}

unsigned blocks_of(const GroupWalk& walk) { return unsigned(div_up(walk.items, walk.slots())); }

}  // namespace

void enqueue(const Queue& queue, const GroupNormSums& op) {
  over_groups(op.x, op.group, {}, [&](auto* type, auto whole, const GroupWalk& walk) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, op.kName, group_norm_sums_kernel<T, decltype(whole)::value>, blocks_of(walk), kGroupThreads, 0,
           view_of<const T>(op.x), walk, op.sums);
  });
}

void enqueue(const Queue& queue, const GroupNormApply& op) {
  over_groups(op.x, op.group, {op.y, op.weight}, [&](auto* type, auto whole, const GroupWalk& walk) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, op.kName, group_norm_apply_kernel<T, decltype(whole)::value>, blocks_of(walk), kGroupThreads, 0,
           view_of<const T>(op.x), walk, Rstd{op.sums, float(op.count), op.eps}, op.weight.as<const float>(),
           exact_offset(op.weight_offset), view_of<T>(op.y));
  });
}

void enqueue(const Queue& queue, const GroupNormDots& op) {
  over_groups(op.x, op.group, {op.dy, op.weight}, [&](auto* type, auto whole, const GroupWalk& walk) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, op.kName, group_norm_dots_kernel<T, decltype(whole)::value>, blocks_of(walk), kGroupThreads, 0,
           view_of<const T>(op.dy), view_of<const T>(op.x), walk, op.weight.as<const float>(), exact_offset(op.weight_offset),
           op.dots);
  });
}

void enqueue(const Queue& queue, const GroupNormBackward& op, void* scratch) {
  const auto partial = static_cast<float*>(scratch);
  int64_t blocks = 0;
  over_groups(op.x, op.group, {op.dy, op.dx, op.weight}, [&](auto* type, auto whole, const GroupWalk& walk) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t block_items = group_norm_block_items(walk.items);
    blocks = div_up(walk.items, block_items);
    const GroupBackward<T> p{view_of<const T>(op.dy), view_of<const T>(op.x), view_of<T>(op.dx),
                             {op.sums, float(op.count), op.eps}, op.dots, op.weight.as<const float>(),
                             exact_offset(op.weight_offset), partial, int(block_items)};
    const dim3 grid(unsigned(blocks), unsigned(div_up(op.group, walk.lanes * (16 / int(sizeof(T))))));
    launch(queue, op.kName, group_norm_backward_kernel<T, decltype(whole)::value>, grid, kGroupThreads, 0, p, walk);
  });
  add_partials(queue, op.kName, partial, blocks, op.group, op.group, op.dweight.as<float>(), nullptr, op.accumulate);
}

}  // namespace trainctl::kernels::cuda
