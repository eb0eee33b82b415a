// Cross entropy on logits [M, V] of any alignment, one block a row. The gradient is written over the logits, which are never held in
// a wider type.
#include <climits>
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ragged.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

/// exp(x - base). The difference comes first: it is exact where the result is not tiny, however large both are.
__device__ inline float exp_difference(float x, float base) { return fast_exp2((x - base) * kLog2E); }

/// Of the elements seen so far: their maximum and the sum of exp(element - maximum).
struct Running {
  float max = -INFINITY, sum = 0;
};

/// What exponents are measured from: the maximum, but for a row of nothing but -infinity.
__device__ inline float base_of(float max) { return max == -INFINITY ? 0.0f : max; }

template <int N, int kGroups>
__device__ inline void absorb(Running& r, const Group<N> (&groups)[kGroups]) {
  float max = r.max;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
#pragma unroll
    for (int i = 0; i < N; ++i) max = fmaxf(max, groups[k].v[i]);
  }
  const float base = base_of(max);
  float sum = r.sum * exp_difference(r.max, base);
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exp_difference(groups[k].v[i], base);
  }
  r = {max, sum};
}

/// This thread's share of a row: which elements, and in which order, is fixed by `cols`. Four groups are asked for at a time, to have
/// enough bytes on their way.
template <bool kAligned, typename T>
__device__ inline Running absorb_row(const T* row, int cols) {
  constexpr int N = Vec<T>::kLength, kStep = kThreads * N;
  Running r;
  int c = int(threadIdx.x) * N;
  for (; c + 3 * kStep + N <= cols; c += 4 * kStep) {
    Group<N> groups[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) groups[k] = load_group<N, kAligned>(row + c + k * kStep);
    absorb(r, groups);
  }
  for (; c < cols; c += kStep) {
    const Group<N> groups[1] = {load_group<N, kAligned>(row + c, cols - c, -INFINITY)};
    absorb(r, groups);
  }
  return r;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    stats_kernel(const T* logits, int64_t stride, int cols, const int32_t* targets, int64_t vocab_begin, float* stats) {
  __shared__ float shared[kThreads / kWarpSize];
  const int64_t m = blockIdx.x;
  const T* row = logits + m * stride;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  const Running own = aligned ? absorb_row<true>(row, cols) : absorb_row<false>(row, cols);
  const float warp = warp_max(own.max);
  if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = warp;
  __syncthreads();
  float max = shared[0];
  for (int w = 1; w < kThreads / kWarpSize; ++w) max = fmaxf(max, shared[w]);
  __syncthreads();
  const float sum = block_sum<kThreads>(own.sum * exp_difference(own.max, base_of(max)), shared);
  if (threadIdx.x == 0) {
    const int64_t target = targets[m] - vocab_begin;
    stats[3 * m] = max;
    stats[3 * m + 1] = sum;
    stats[3 * m + 2] = target >= 0 && target < cols ? to_float(row[target]) : 0.0f;
  }
}

/// One row a thread, in double: the loss is a difference of numbers that may be close.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const float* stats, int parts, int64_t rows, float* lse, float* loss) {
  const int64_t m = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (m >= rows) return;
  float max = stats[3 * m];
  for (int part = 1; part < parts; ++part) max = fmaxf(max, stats[3 * (part * rows + m)]);
  double sum = 0, target = 0;
  for (int part = 0; part < parts; ++part) {
    const float* s = stats + 3 * (part * rows + m);
    sum += s[1] * exp(double(s[0]) - max);
    target += s[2];
  }
  const double log_sum = max + log(sum);
  lse[m] = float(log_sum);
  loss[m] = float(log_sum - target);
}

/// What a row's gradient is made of.
struct RowGradient {
  float lse, scale;
  int target;  ///< column, or -1

  __device__ float operator()(float logit, int column) const {
    const float p = exp_difference(logit, lse);
    return (column == target ? p - 1.0f : p) * scale;
  }
  template <int N>
  __device__ void apply(Group<N>& g, int column) const {
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] = (*this)(g.v[i], column + i);
  }
};

/// Each element by itself, so a row is cut where 16 bytes begin: fewer than a group in front, groups, fewer than a group behind.
template <typename T>
__global__ void __launch_bounds__(kThreads) backward_kernel(T* logits, int64_t stride, int cols, const int32_t* targets,
                                                            int64_t vocab_begin, const float* lse, float scale) {
  constexpr int N = Vec<T>::kLength, kStep = kThreads * N;
  const int64_t m = blockIdx.x;
  T* row = logits + m * stride;
  const int64_t target = targets[m] - vocab_begin;
  const RowGradient gradient{lse[m], scale, target >= 0 && target < cols ? int(target) : -1};

  const int to_boundary = int((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
  const int front = to_boundary < cols ? to_boundary : cols;
  const int back = front + (cols - front) / N * N;
  const int t = int(threadIdx.x);
  if (t < front) row[t] = from_float<T>(gradient(to_float(row[t]), t));
  if (back + t < cols) row[back + t] = from_float<T>(gradient(to_float(row[back + t]), back + t));

  int c = front + t * N;
  for (; c + 3 * kStep < back; c += 4 * kStep) {
    Group<N> groups[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) groups[k] = load_group<N, true>(row + c + k * kStep);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      gradient.apply(groups[k], c + k * kStep);
      store_group<N, true>(row + c + k * kStep, groups[k]);
    }
  }
  for (; c < back; c += kStep) {
    Group<N> group = load_group<N, true>(row + c);
    gradient.apply(group, c);
    store_group<N, true>(row + c, group);
  }
}

}  // namespace

void enqueue(const Queue& queue, const CrossEntropyStats& op) {
  ENSURE(op.logits.rows <= INT_MAX && op.logits.cols > 0 && op.logits.cols < INT_MAX / 2);
  with_type(op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(queue, "cross_entropy_stats", stats_kernel<T>, dim3(unsigned(op.logits.rows)), dim3(kThreads), 0,
           op.logits.as<const T>(), op.logits.stride, int(op.logits.cols), op.targets, op.vocab_begin, op.stats);
  });
}

void enqueue(const Queue& queue, const CrossEntropyCombine& op) {
  ENSURE(op.parts > 0);
  launch(queue, "cross_entropy_combine", combine_kernel, dim3(unsigned(div_up(op.m, kThreads))), dim3(kThreads), 0,
         op.stats, op.parts, op.m, op.lse, op.loss);
}

void enqueue(const Queue& queue, const CrossEntropyBackward& op) {
  ENSURE(op.logits.rows <= INT_MAX && op.logits.cols > 0 && op.logits.cols < INT_MAX / 2);
  with_type(op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(queue, "cross_entropy_backward", backward_kernel<T>, dim3(unsigned(op.logits.rows)), dim3(kThreads), 0,
           op.logits.as<T>(), op.logits.stride, int(op.logits.cols), op.targets, op.vocab_begin, op.lse, op.scale);
  });
}

}  // namespace trainctl::kernels::cuda
