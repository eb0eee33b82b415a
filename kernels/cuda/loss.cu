// Cross entropy on logits [M, V] of any alignment, one block a row. The gradient is written over the logits, which are never held in
// a wider type.
#include <climits>
#include <cmath>

#include "kernels/cuda/elements.cuh"
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

struct PlainLogits {
  __device__ float operator()(float logit) const { return logit; }
};
/// LogitForm in a kernel.
struct FormedLogits {
  float scale, cap, into;
  explicit FormedLogits(const LogitForm& form) : scale(form.scale), cap(form.cap), into(form.cap > 0 ? form.scale / form.cap : 0) {}

  __device__ float operator()(float logit) const { return cap > 0 ? cap * tanhf(logit * into) : scale * logit; }
  /// The derivative at a logit whose form is `value`.
  __device__ float slope(float value) const {
    const float t = cap > 0 ? value / cap : 0.0f;
    return fmaf(-t, t, 1.0f) * scale;
  }
};
template <typename Form, int N>
__device__ inline void apply_form(const Form& form, Group<N>& g) {
  if constexpr (!std::is_same_v<Form, PlainLogits>) {
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] = form(g.v[i]);
  }
}

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
template <bool kAligned, typename T, typename Form>
__device__ inline Running absorb_row(const T* row, int cols, const Form& form) {
  constexpr int N = Vec<T>::kLength, kStep = kThreads * N;
  Running r;
  int c = int(threadIdx.x) * N;
  for (; c + 3 * kStep + N <= cols; c += 4 * kStep) {
    Group<N> groups[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) groups[k] = load_group<N, kAligned>(row + c + k * kStep);
#pragma unroll
    for (int k = 0; k < 4; ++k) apply_form(form, groups[k]);
    absorb(r, groups);
  }
  for (; c < cols; c += kStep) {
    Group<N> groups[1] = {load_group<N, kAligned>(row + c, cols - c, -INFINITY)};
    if constexpr (!std::is_same_v<Form, PlainLogits>) {
#pragma unroll
      for (int i = 0; i < N; ++i) groups[0].v[i] = i < cols - c ? form(groups[0].v[i]) : -INFINITY;
    }
    absorb(r, groups);
  }
  return r;
}

template <typename T, typename Form>
__global__ void __launch_bounds__(kThreads) stats_kernel(const T* logits, int64_t stride, int cols, const int32_t* targets,
                                                         int64_t vocab_begin, Form form, float* stats) {
  __shared__ float shared[kThreads / kWarpSize];
  const int64_t m = blockIdx.x;
  const T* row = logits + m * stride;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  const Running own = aligned ? absorb_row<true>(row, cols, form) : absorb_row<false>(row, cols, form);
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
    stats[3 * m + 2] = targets[m] >= 0 && target >= 0 && target < cols ? form(to_float(row[target])) : 0.0f;
  }
}

/// One row a thread, in double: the loss is a difference of numbers that may be close.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const float* stats, int parts, int64_t rows, float* lse, float* loss, const int32_t* targets, const float* weights,
                   float z_loss) {
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
  double of_row = log_sum - target;
  if (z_loss != 0) of_row += z_loss * log_sum * log_sum;
  if (weights) of_row *= weights[m];
  loss[m] = targets && targets[m] < 0 ? 0.0f : float(of_row);
}

/// What a row's gradient is made of.
struct RowGradient {
  float lse, scale;
  int target;  ///< column, or -1

  __device__ float operator()(float logit, int column) const {
    const float p = exp_difference(logit, lse);
    return (column == target ? p - 1.0f : p) * scale;
  }
};
/// The same with a form, and p counted `of_p` times.
struct FormedRowGradient {
  float lse, scale;
  int target;
  float of_p;
  FormedLogits form;

  __device__ float operator()(float logit, int column) const {
    const float value = form(logit), p = __fmul_rn(exp_difference(value, lse), of_p);
    return (column == target ? p - 1.0f : p) * scale * form.slope(value);
  }
};
template <typename Gradient, int N>
__device__ inline void apply(const Gradient& gradient, Group<N>& g, int column) {
#pragma unroll
  for (int i = 0; i < N; ++i) g.v[i] = gradient(g.v[i], column + i);
}

/// What every row's gradient needs.
struct Backward {
  const int32_t* targets;
  int64_t vocab_begin;
  const float *lse, *weights;
  float scale, z_loss;
  FormedLogits form;

  __device__ bool has_loss(int64_t m) const { return targets[m] >= 0; }
  template <bool kFormed>
  __device__ auto of_row(int64_t m, int cols) const {
    const int64_t target = targets[m] - vocab_begin;
    const int column = target >= 0 && target < cols ? int(target) : -1;
    const float of_row = weights ? scale * weights[m] : scale;
    if constexpr (kFormed) return FormedRowGradient{lse[m], of_row, column, fmaf(2.0f * z_loss, lse[m], 1.0f), form};
    else return RowGradient{lse[m], of_row, column};
  }
};

/// Each element by itself, so a row is cut where 16 bytes begin: fewer than a group in front, groups, fewer than a group behind.
template <typename T, bool kFormed>
__global__ void __launch_bounds__(kThreads) backward_kernel(T* logits, int64_t stride, int cols, Backward p) {
  constexpr int N = Vec<T>::kLength, kStep = kThreads * N;
  const int64_t m = blockIdx.x;
  T* row = logits + m * stride;
  if (!p.has_loss(m)) {
    for (int c = int(threadIdx.x); c < cols; c += kThreads) row[c] = from_float<T>(0.0f);
    return;
  }
  const auto gradient = p.of_row<kFormed>(m, cols);

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
      apply(gradient, groups[k], c + k * kStep);
      store_group<N, true>(row + c + k * kStep, groups[k]);
    }
  }
  for (; c < back; c += kStep) {
    Group<N> group = load_group<N, true>(row + c);
    apply(gradient, group, c);
    store_group<N, true>(row + c, group);
  }
}

template <typename T>
struct FormElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 1, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[1];
  View<T> out[1];
  FormedLogits form;

  __device__ void operator()(const float (&from)[1], float (&to)[1]) const { to[0] = form(from[0]); }
};

}  // namespace

void enqueue(const Queue& queue, const FormLogits& op) {
  with_activation_type(op.logits.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const FormElement<T> element{{view_of<const T>(op.logits)}, {view_of<T>(op.logits)}, FormedLogits(op.form)};
    for_each_element(queue, op.kName, element, {op.logits});
  });
}

void enqueue(const Queue& queue, const CrossEntropyStats& op) {
  ENSURE(op.logits.rows <= INT_MAX && op.logits.cols > 0 && op.logits.cols < INT_MAX / 2);
  with_type(op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto start = [&](auto kernel, auto form) {
      launch(queue, "cross_entropy_stats", kernel, dim3(unsigned(op.logits.rows)), dim3(kThreads), 0, op.logits.as<const T>(),
             op.logits.stride, int(op.logits.cols), op.targets, op.vocab_begin, form, op.stats);
    };
    if (op.form.is_plain()) start(stats_kernel<T, PlainLogits>, PlainLogits{});
    else start(stats_kernel<T, FormedLogits>, FormedLogits(op.form));
  });
}

void enqueue(const Queue& queue, const CrossEntropyCombine& op) {
  ENSURE(op.parts > 0);
  launch(queue, "cross_entropy_combine", combine_kernel, dim3(unsigned(div_up(op.m, kThreads))), dim3(kThreads), 0,
         op.stats, op.parts, op.m, op.lse, op.loss, op.targets, op.weights, op.z_loss);
}

void enqueue(const Queue& queue, const CrossEntropyBackward& op) {
  ENSURE(op.logits.rows <= INT_MAX && op.logits.cols > 0 && op.logits.cols < INT_MAX / 2);
  with_type(op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool plain = op.form.is_plain() && op.z_loss == 0;
    const Backward p{op.targets, op.vocab_begin, op.lse, op.weights, op.scale, op.z_loss, FormedLogits(op.form)};
    launch(queue, "cross_entropy_backward", plain ? backward_kernel<T, false> : backward_kernel<T, true>,
           dim3(unsigned(op.logits.rows)), dim3(kThreads), 0, op.logits.as<T>(), op.logits.stride, int(op.logits.cols), p);
  });
}

}  // namespace trainctl::kernels::cuda
