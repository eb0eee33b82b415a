// Digests of state. Sums of integers have no order, so blocks add theirs by atomics.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kTile = 4096;  ///< elements of a row that a block takes at once
/// Blocks of a box: enough of them for the memory of a GPU even where a launch has one box.
constexpr int64_t kMostBlocks = 1024;

struct DigestBatch {
  DigestBox boxes[kDigestBoxes];
};
static_assert(sizeof(DigestBatch) <= 4096);  // of the parameters of a kernel

__host__ __device__ inline int64_t tiles_of_row(const DigestBox& box) { return div_up(box.data.cols, kTile); }

template <typename Bits>
__device__ inline uint64_t digest_of_tiles(const DigestBox& box) {
  const int64_t tiles = tiles_of_row(box);
  uint64_t sum = 0;
  for (int64_t tile = blockIdx.x; tile < tiles * box.data.rows; tile += gridDim.x) {
    const int64_t r = tile / tiles, begin = tile % tiles * kTile;
    const Bits* const bits = static_cast<const Bits*>(box.data.data) + r * box.data.stride;
    const uint64_t row = digest_row(box.tensor, box.first + r * box.row_step);
    const int64_t end = begin + kTile < box.data.cols ? begin + kTile : box.data.cols;
    for (int64_t c = begin + threadIdx.x; c < end; c += kThreads) sum += digest_element(row, c, bits[c]);
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads) digest_kernel(const DigestBatch batch, unsigned long long* out) {
  __shared__ uint64_t sums[kThreads];
  const DigestBox& box = batch.boxes[blockIdx.y];
  const size_t size = size_of(box.data.dtype);
  sums[threadIdx.x] = size == 4   ? digest_of_tiles<uint32_t>(box)
                      : size == 2 ? digest_of_tiles<uint16_t>(box)
                                  : digest_of_tiles<uint8_t>(box);
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) atomicAdd(out + blockIdx.y, (unsigned long long)sums[0]);
}

}  // namespace

void digest(const Queue& queue, std::span<const DigestBox> boxes, uint64_t* out) {
  ENSURE(boxes.size() <= kDigestBoxes);
  DigestBatch batch{};
  int64_t blocks = 0;
  for (size_t i = 0; i < boxes.size(); ++i) {
    batch.boxes[i] = boxes[i];
    // A block takes several short rows, not one.
    const int64_t tiles = tiles_of_row(boxes[i]) * boxes[i].data.rows;
    blocks = std::max(blocks, std::min(tiles, div_up(boxes[i].data.rows * boxes[i].data.cols, kTile)));
  }
  if (blocks == 0) return;
  const dim3 grid(unsigned(std::min(blocks, kMostBlocks)), unsigned(boxes.size()));
  launch(queue, "digest", digest_kernel, grid, dim3(kThreads), 0, batch,
         reinterpret_cast<unsigned long long*>(out));
}

}  // namespace trainctl::kernels::cuda
