// Twin of kernels/cuda/launch.cuh: a launch is work on a stream of the emulated GPU, and carries the op's name.
#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/queue.h"

namespace trainctl::kernels::cuda {

[[noreturn]] void throw_cuda_error(const char* op, const char* call, cudaError_t error);

template <typename... Parameters, typename... Arguments>
void launch(const Queue& queue, const char* op, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
    if (error != cudaSuccess) throw_cuda_error(op, "cudaFuncSetAttribute", error);
  }
  const cudaError_t error =
      emulated_gpu::launch_kernel(op, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, queue.stream,
                                  emulated_gpu::bound<Parameters...>(kernel, Parameters(arguments)...));
  if (error != cudaSuccess) throw_cuda_error(op, "cudaLaunchKernelEx", error);
}

}  // namespace trainctl::kernels::cuda
