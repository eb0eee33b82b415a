// The gradients of the scalars that attention learns for each head. A block adds kScalarRowsPerBlock rows of one
// head; then the sums of the blocks are added in order.
#include "kernels/cuda/attention_delta.cuh"
#include "kernels/cuda/partial_sums.cuh"

namespace trainctl::kernels::cuda {

namespace {

constexpr const char* kScalarOp = HeadScalarBackward::kName;

template <typename T>
struct ScalarArguments {
  HeadScalar scalar;
  HeadsView<const T> left, right;
  const float *lse, *values;  ///< [M, H], [H]
  float* partial;             ///< [blocks, H]
  int64_t rows;
  int heads, head_dim;
};

/// A block of the grid's x owns rows, of its y a head. Groups of eight lanes take every kGroups-th row.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kDeltaThreads) scalar_kernel(ScalarArguments<T> a) {
  constexpr int kGroups = kDeltaThreads / kLanesPerRow;
  __shared__ float sums[kGroups];
  const int lane = int(threadIdx.x) % kLanesPerRow, group = int(threadIdx.x) / kLanesPerRow, head = int(blockIdx.y);
  const int64_t first = int64_t(blockIdx.x) * kScalarRowsPerBlock, col = int64_t(head) * a.head_dim;
  float sum = 0.0f;
  for (int r = group; r < kScalarRowsPerBlock; r += kGroups) {
    const int64_t row = first + r;
    const bool exists = row < a.rows;
    const float product =
        add_lanes(exists ? delta_share<T, kAligned>(a.left.at(row, col), a.right.at(row, col), a.head_dim, lane) : 0.0f);
    if (exists) sum += row_factor(a.scalar, a.values[head], a.lse[row * a.heads + head]) * product;
  }
  if (lane == 0) sums[group] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int g = 1; g < kGroups; ++g) sum += sums[g];
  a.partial[int64_t(blockIdx.x) * a.heads + head] = sum;
}

template <typename T>
void scalar_backward(const Queue& queue, const HeadScalarBackward& op, float* partial) {
  const Matrix &left = op.left(), &right = op.right();
  const int64_t blocks = div_up(left.rows, kScalarRowsPerBlock), heads = op.heads();
  const ScalarArguments<T> a{op.scalar, heads_of<const T>(left, 0), heads_of<const T>(right, 0), op.lse,
                             op.values.as<float>(), partial, left.rows, int(heads), int(op.head_dim)};
  const bool aligned = is_vectorizable(left) && is_vectorizable(right) && op.head_dim % Vec<T>::kLength == 0;
  launch(queue, kScalarOp, aligned ? scalar_kernel<T, true> : scalar_kernel<T, false>, dim3(unsigned(blocks), unsigned(heads)),
         kDeltaThreads, 0, a);
  add_partials(queue, kScalarOp, partial, blocks, heads, heads, op.dvalues.as<float>(), nullptr, op.accumulate);
}

}  // namespace

void enqueue(const Queue& queue, const HeadScalarBackward& op, void* scratch) {
  auto* const partial = static_cast<float*>(scratch);
  op.left().dtype == DType::f32 ? scalar_backward<float>(queue, op, partial) : scalar_backward<bf16_t>(queue, op, partial);
}

}  // namespace trainctl::kernels::cuda
