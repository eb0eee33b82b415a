// Starting a kernel: the one place that does it, so that a failure names the op.
#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/queue.h"

namespace trainctl::kernels::cuda {

/// Throws Error(kHardware): "norm_forward: cudaLaunchKernel on device 0: <reason>".
[[noreturn]] void throw_cuda_error(const char* op, const char* call, cudaError_t error);

/// Enqueues kernel<<<grid, block, shared_bytes>>>(args...) on the queue's stream. More than 48 KiB of dynamic shared memory are asked
/// for before each launch: a call to the runtime, without work for the device. `op` is the op's name in errors.
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
