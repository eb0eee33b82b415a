// Queue: the stream of an op, and the properties of its GPU that kernels need.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

namespace trainctl::kernels::cuda {

struct Queue {
  cudaStream_t stream = nullptr;
  /// Of the GPU; determines the size of persistent grids, never the order of a sum.
  int multiprocessors = 1;
  int compute = 0;                      ///< 90: compute capability 9.0
  size_t most_shared_bytes = 48 << 10;  ///< most shared memory of a block; determines the tiles of attention
};

}  // namespace trainctl::kernels::cuda
