// What the tests of the emulated GPU share: launching, and mistakes that must end the process.
#pragma once
#include <cuda_runtime.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "runtime/base/ensure.h"
#include "test/support/emulated_gpu/emulated_gpu.h"

namespace trainctl::emulated_gpu {

/// Begins anew, with one stream.
class Fixture {
 public:
  explicit Fixture(const Options& options = {}) {
    reset(options);
    REQUIRE(cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~Fixture() { cudaStreamDestroy(queue.stream); }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  /// Launches and waits.
  template <typename... Parameters, typename... Arguments>
  void run(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Arguments... arguments) {
    kernels::cuda::launch(queue, "test_kernel", kernel, grid, block, shared_bytes, arguments...);
    REQUIRE(cudaStreamSynchronize(queue.stream) == cudaSuccess);
  }
  kernels::cuda::Queue queue;
};

/// Every order of threads, and several seeds of the random one.
inline std::vector<Options> all_orders() {
  std::vector<Options> orders;
  for (const OrderKind kind : {OrderKind::forward, OrderKind::reverse}) orders.push_back({.thread_order = kind});
  for (uint64_t seed = 1; seed <= 4; ++seed) orders.push_back({.thread_order = OrderKind::random, .seed = seed});
  return orders;
}

/// What `work` writes to standard error before it aborts, in a child process; "(did not abort)" when it does not.
template <typename Work>
std::string abort_message(Work work) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int s : {SIGABRT, SIGSEGV, SIGILL, SIGBUS}) ::signal(s, SIG_DFL);   // Catch2's handlers would report a failed test
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    work();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, size_t(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) return "(did not abort) " + text;
  return text;
}

/// Handles with an owner, also used in threads, where the test framework must not be.
template <typename T>
struct DeviceArray {
  T* data = nullptr;
  size_t count;
  explicit DeviceArray(size_t count) : count(count) { ENSURE(cudaMalloc(&data, count * sizeof(T)) == cudaSuccess); }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
};
struct StreamHandle {
  cudaStream_t stream = nullptr;
  StreamHandle() { ENSURE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess); }
  ~StreamHandle() { cudaStreamDestroy(stream); }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
};
struct EventHandle {
  cudaEvent_t event = nullptr;
  explicit EventHandle(unsigned flags = cudaEventDisableTiming) { ENSURE(cudaEventCreateWithFlags(&event, flags) == cudaSuccess); }
  ~EventHandle() { cudaEventDestroy(event); }
  EventHandle(const EventHandle&) = delete;
  EventHandle& operator=(const EventHandle&) = delete;
};

/// Every order of streams, and several seeds of the random one.
inline std::vector<Options> all_modes() {
  std::vector<Options> modes;
  for (const StreamMode mode : {StreamMode::eager, StreamMode::lazy}) modes.push_back({.stream_mode = mode});
  for (uint64_t seed = 1; seed <= 6; ++seed) modes.push_back({.stream_mode = StreamMode::random, .seed = seed});
  return modes;
}

__global__ inline void fill_kernel(float* out, float value, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = value;
}
__global__ inline void double_kernel(const float* in, float* out, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = 2 * in[i];
}
inline void fill(cudaStream_t stream, float* out, float value, int n, const char* op = "fill") {
  kernels::cuda::launch(kernels::cuda::Queue{stream}, op, fill_kernel, unsigned(n + 63) / 64, 64, 0, out, value, n);
}
inline void twice(cudaStream_t stream, const float* in, float* out, int n) {
  kernels::cuda::launch(kernels::cuda::Queue{stream}, "twice", double_kernel, unsigned(n + 63) / 64, 64, 0, in, out, n);
}

}  // namespace trainctl::emulated_gpu
