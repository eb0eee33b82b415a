// The fake CUDA runtime: every call does its work at once.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "test/support/emulated_gpu/emulated_gpu.h"

struct CUstream_st {};
struct CUevent_st {};

namespace trainctl::emulated_gpu {
namespace {
Options options_now;
uint64_t launches = 0;
}  // namespace

void reset(const Options& options) { options_now = options; }

cudaError_t launch_kernel(const char* name, const void*, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::function<void()> body) {
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (block.x * block.y * block.z > 1024 || block.z > 64 || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  if (shared_bytes > 227 * 1024) return cudaErrorInvalidValue;
  const Launch launch{name, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, std::move(body)};
  run_launch(launch, options_now.thread_order, options_now.seed + launches++);
  return cudaSuccess;
}
}  // namespace trainctl::emulated_gpu

namespace trainctl::kernels::cuda {
[[gnu::weak, noreturn]] void throw_cuda_error(const char* op, const char* call, cudaError_t error) {
  trainctl::emulated_gpu::kernel_failed(std::string(op) + ": " + call + ": " + cudaGetErrorName(error));
}
}  // namespace trainctl::kernels::cuda

const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*p, trainctl::emulated_gpu::kGarbage, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  std::memset(p, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
