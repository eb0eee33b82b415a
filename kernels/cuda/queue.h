// Where an op's kernels go.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

namespace trainctl::kernels::cuda {

struct Queue {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;             ///< of the device; sizes persistent grids, never the order of a sum
  size_t most_shared_bytes = 48 << 10;  ///< that a block may ask for: chooses attention's tiles
};

}  // namespace trainctl::kernels::cuda
