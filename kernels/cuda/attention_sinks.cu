// The gradient of the sinks of attention. A block adds kSinkRowsPerBlock rows of one head; then the sums of the
// blocks are added in order.
#include "kernels/cuda/attention_delta.cuh"
#include "kernels/cuda/partial_sums.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr const char* kSinkOp = SinkBackward::kName;

template <typename T>
struct SinkArguments {
  HeadsView<const T> out, dout;
  const float *lse, *sinks;   ///< [M, H], [H]
  float* partial;             ///< [blocks, H]
  int64_t rows;
  int heads, head_dim;
};

/// A block of the grid's x owns rows, of its y a head. Groups of eight lanes take every kGroups-th row.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kDeltaThreads) sink_kernel(SinkArguments<T> a) {
  constexpr int kGroups = kDeltaThreads / kLanesPerRow;
  __shared__ float sums[kGroups];
  const int lane = int(threadIdx.x) % kLanesPerRow, group = int(threadIdx.x) / kLanesPerRow, head = int(blockIdx.y);
  const int64_t first = int64_t(blockIdx.x) * kSinkRowsPerBlock, col = int64_t(head) * a.head_dim;
  float sum = 0.0f;
  for (int r = group; r < kSinkRowsPerBlock; r += kGroups) {
    const int64_t row = first + r;
    const bool exists = row < a.rows;
    const float delta =
        add_lanes(exists ? delta_share<T, kAligned>(a.out.at(row, col), a.dout.at(row, col), a.head_dim, lane) : 0.0f);
    if (exists) sum -= expf(a.sinks[head] - a.lse[row * a.heads + head]) * delta;
  }
  if (lane == 0) sums[group] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int g = 1; g < kGroups; ++g) sum += sums[g];
  a.partial[int64_t(blockIdx.x) * a.heads + head] = sum;
}

template <typename T>
void sink_backward(const Queue& queue, const SinkBackward& op, float* partial) {
  const int64_t blocks = div_up(op.out.rows, kSinkRowsPerBlock), heads = op.heads();
  const SinkArguments<T> a{heads_of<const T>(op.out, 0), heads_of<const T>(op.dout, 0), op.lse, op.sinks.as<float>(),
                           partial, op.out.rows, int(heads), int(op.head_dim)};
  const bool aligned = is_vectorizable(op.out) && is_vectorizable(op.dout) && op.head_dim % Vec<T>::kLength == 0;
  launch(queue, kSinkOp, aligned ? sink_kernel<T, true> : sink_kernel<T, false>, dim3(unsigned(blocks), unsigned(heads)),
         kDeltaThreads, 0, a);
  add_partials(queue, kSinkOp, partial, blocks, heads, heads, op.dsinks.as<float>(), nullptr, op.accumulate);
}

}  // namespace

void enqueue(const Queue& queue, const SinkBackward& op, void* scratch) {
  auto* const partial = static_cast<float*>(scratch);
  op.out.dtype == DType::f32 ? sink_backward<float>(queue, op, partial) : sink_backward<bf16_t>(queue, op, partial);
}

}  // namespace trainctl::kernels::cuda
