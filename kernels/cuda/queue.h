// Where an op's kernels go.
#pragma once
#include <cuda_runtime_api.h>

namespace trainctl::kernels::cuda {

struct Queue {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;    ///< of the device; sizes persistent grids, never the order of a sum
};

}  // namespace trainctl::kernels::cuda
