// What a mixture of experts does with rows: a block for each row of experts or of tokens.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kRowThreads = 256;

/// Where a row finds its weight; slots null: weights are in the order of rows.
__device__ inline int64_t slot_of(const int32_t* slots, int64_t row) { return slots ? slots[row] : row; }

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    gather_kernel(View<const T> x, int64_t rows, const int32_t* slots, int k, View<T> out, int64_t cols) {
  const int64_t r = blockIdx.x, slot = slots[r], m = slot / k;
  const bool exists = slot >= 0 && m < rows;
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads)
    *out.at(r, c) = exists ? *x.at(m, c) : from_float<T>(0.0f);
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    combine_kernel(View<const T> x, const int32_t* rows, int k, View<T> out, int64_t cols) {
  const int64_t m = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads) {
    float sum = 0;
    for (int j = 0; j < k; ++j)
      if (rows[m * k + j] >= 0) sum += to_float(*x.at(rows[m * k + j], c));
    *out.at(m, c) = from_float<T>(sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    scale_kernel(View<const T> x, const float* weights, const int32_t* slots, View<T> y, int64_t cols) {
  const int64_t r = blockIdx.x;
  const int64_t slot = slot_of(slots, r);
  const float weight = slot >= 0 ? weights[slot] : 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads)
    *y.at(r, c) = from_float<T>(slot >= 0 ? weight * to_float(*x.at(r, c)) : 0.0f);
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    scale_backward_kernel(View<const T> x, const float* weights, const int32_t* slots, View<const T> dy,
                          float* dweights, View<T> dx, int64_t cols) {
  __shared__ float shared[kRowThreads / kWarpSize];
  const int64_t r = blockIdx.x;
  const int64_t slot = slot_of(slots, r);
  const float weight = slot >= 0 ? weights[slot] : 0.0f;
  float dot = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads) {
    const float d = to_float(*dy.at(r, c));
    dot = fmaf(to_float(*x.at(r, c)), d, dot);
    *dx.at(r, c) = from_float<T>(slot >= 0 ? weight * d : 0.0f);
  }
  dot = block_sum<kRowThreads>(dot, shared);
  if (threadIdx.x == 0 && slot >= 0) dweights[slot] = dot;
}

__device__ inline double sigmoid_of(float x) { return 1 / (1 + exp(-double(x))); }

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    gate_kernel(View<const T> x, const float* logits, View<T> y, int64_t cols) {
  const int64_t m = blockIdx.x;
  const float gate = float(sigmoid_of(logits[m]));
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads)
    *y.at(m, c) = from_float<T>(gate * to_float(*x.at(m, c)));
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    gate_backward_kernel(View<const T> x, const float* logits, View<const T> dy, float* dlogits, View<T> dx,
                         int64_t cols) {
  __shared__ float shared[kRowThreads / kWarpSize];
  const int64_t m = blockIdx.x;
  const double gate = sigmoid_of(logits[m]);
  float dot = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads) {
    const float d = to_float(*dy.at(m, c));
    dot = fmaf(to_float(*x.at(m, c)), d, dot);
    *dx.at(m, c) = from_float<T>(float(gate) * d);
  }
  dot = block_sum<kRowThreads>(dot, shared);
  if (threadIdx.x == 0) dlogits[m] = float(gate * (1 - gate) * double(dot));
}

/// The expert of a row.
__device__ inline int expert_of(const int32_t* offsets, int experts, int64_t row) {
  int first = 0, last = experts - 1;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (row < offsets[middle + 1])
      last = middle;
    else
      first = middle + 1;
  }
  return first;
}

/// weights null: all 1.
__device__ inline float weight_of(const float* weights, const int32_t* slots, int64_t row) {
  return weights ? weights[slot_of(slots, row)] : 1.0f;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    add_expert_bias_kernel(View<T> x, const int32_t* offsets, int experts, const float* bias,
                           const float* weights, const int32_t* slots, int64_t cols) {
  const int64_t r = blockIdx.x;
  if (r >= offsets[experts]) return;
  const float* const own = bias + expert_of(offsets, experts, r) * cols;
  const float weight = weight_of(weights, slots, r);
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads)
    *x.at(r, c) = from_float<T>(fmaf(weight, own[c], to_float(*x.at(r, c))));
}

/// A thread for each column of an expert goes over its rows.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    expert_bias_backward_kernel(View<const T> dy, const int32_t* offsets, const float* weights,
                                const int32_t* slots, float* dbias, int64_t cols, bool accumulate) {
  const int64_t expert = blockIdx.y, c = int64_t(blockIdx.x) * kRowThreads + threadIdx.x;
  if (c >= cols) return;
  float* const to = dbias + expert * cols + c;
  float sum = 0;
  for (int64_t r = offsets[expert]; r < offsets[expert + 1]; ++r)
    sum = fmaf(weight_of(weights, slots, r), to_float(*dy.at(r, c)), sum);
  *to = accumulate ? *to + sum : sum;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    expert_bias_weights_kernel(View<const T> dy, const int32_t* offsets, int experts, const float* bias,
                               const int32_t* slots, float* dweights, int64_t cols) {
  __shared__ float shared[kRowThreads / kWarpSize];
  const int64_t r = blockIdx.x;
  if (r >= offsets[experts]) return;
  const float* const own = bias + expert_of(offsets, experts, r) * cols;
  float dot = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kRowThreads) dot = fmaf(own[c], to_float(*dy.at(r, c)), dot);
  dot = block_sum<kRowThreads>(dot, shared);
  if (threadIdx.x == 0) dweights[slot_of(slots, r)] += dot;
}

}  // namespace

void enqueue(const Queue& queue, const GatherRows& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, GatherRows::kName, gather_kernel<T>, unsigned(op.out.rows), kRowThreads, 0,
           view_of<const T>(op.x), op.x.rows, op.slots.as<int32_t>(), int(op.top_k), view_of<T>(op.out),
           op.out.cols);
  });
}

void enqueue(const Queue& queue, const CombineRows& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, CombineRows::kName, combine_kernel<T>, unsigned(op.out.rows), kRowThreads, 0,
           view_of<const T>(op.x), op.rows.as<int32_t>(), int(op.top_k()), view_of<T>(op.out), op.out.cols);
  });
}

void enqueue(const Queue& queue, const ScaleRows& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, ScaleRows::kName, scale_kernel<T>, unsigned(op.y.rows), kRowThreads, 0,
           view_of<const T>(op.x), op.weights.as<float>(), op.slots.as<int32_t>(), view_of<T>(op.y),
           op.y.cols);
  });
}

void enqueue(const Queue& queue, const ScaleRowsBackward& op) {
  with_activation_type(op.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, ScaleRowsBackward::kName, scale_backward_kernel<T>, unsigned(op.dy.rows), kRowThreads, 0,
           view_of<const T>(op.x), op.weights.as<float>(), op.slots.as<int32_t>(), view_of<const T>(op.dy),
           op.dweights.as<float>(), view_of<T>(op.dx), op.dy.cols);
  });
}

void enqueue(const Queue& queue, const GateRows& op) {
  with_activation_type(op.y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, GateRows::kName, gate_kernel<T>, unsigned(op.y.rows), kRowThreads, 0, view_of<const T>(op.x),
           op.logits.as<float>(), view_of<T>(op.y), op.y.cols);
  });
}

void enqueue(const Queue& queue, const GateRowsBackward& op) {
  with_activation_type(op.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, GateRowsBackward::kName, gate_backward_kernel<T>, unsigned(op.dy.rows), kRowThreads, 0,
           view_of<const T>(op.x), op.logits.as<float>(), view_of<const T>(op.dy), op.dlogits.as<float>(),
           view_of<T>(op.dx), op.dy.cols);
  });
}

void enqueue(const Queue& queue, const AddExpertBias& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, AddExpertBias::kName, add_expert_bias_kernel<T>, unsigned(op.x.rows), kRowThreads, 0,
           view_of<T>(op.x), op.offsets.as<int32_t>(), int(op.offsets.cols - 1), op.bias.as<float>(),
           op.weights.as<float>(), op.slots.as<int32_t>(), op.x.cols);
  });
}

void enqueue(const Queue& queue, const ExpertBiasBackward& op) {
  const dim3 grid(unsigned(div_up(op.dy.cols, kRowThreads)), unsigned(op.offsets.cols - 1));
  with_activation_type(op.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, ExpertBiasBackward::kName, expert_bias_backward_kernel<T>, grid, kRowThreads, 0,
           view_of<const T>(op.dy), op.offsets.as<int32_t>(), op.weights.as<float>(), op.slots.as<int32_t>(),
           op.dbias.as<float>(), op.dy.cols, op.accumulate);
  });
}

void enqueue(const Queue& queue, const ExpertBiasWeights& op) {
  with_activation_type(op.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, ExpertBiasWeights::kName, expert_bias_weights_kernel<T>, unsigned(op.dy.rows), kRowThreads, 0,
           view_of<const T>(op.dy), op.offsets.as<int32_t>(), int(op.offsets.cols - 1), op.bias.as<float>(),
           op.slots.as<int32_t>(), op.dweights.as<float>(), op.dy.cols);
  });
}

}  // namespace trainctl::kernels::cuda
