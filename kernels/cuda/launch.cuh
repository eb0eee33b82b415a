// launch() starts a kernel. All kernels are started through it, so that an error names the op.
#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/queue.h"

namespace trainctl::kernels::cuda {

/// Throws Error(kHardware): "norm_forward: cudaLaunchKernelEx on GPU 0: <reason>". See
/// kernels/cuda/runtime.h.
[[noreturn]] void throw_cuda_error(const char* op, const char* call, cudaError_t error);

/// Enqueues kernel<<<grid, block, shared_bytes>>>(args...) on the queue's stream. For more than 48 KiB of
/// dynamic shared memory it calls cudaFuncSetAttribute before each launch, which is no work for the device.
/// `op`: the op's name in errors.
template <typename... Parameters, typename... Arguments>
void launch(const Queue& queue, const char* op, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
    if (error != cudaSuccess) throw_cuda_error(op, "cudaFuncSetAttribute", error);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = queue.stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  if (error != cudaSuccess) throw_cuda_error(op, "cudaLaunchKernelEx", error);
}

}  // namespace trainctl::kernels::cuda
