// The fake CUDA runtime: what is put on streams, kernels, copies and fills.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "test/support/emulated_gpu/machine.h"

namespace trainctl::emulated_gpu {
namespace {

struct FunctionLimits {
  std::mutex mutex;
  std::map<std::pair<int, const void*>, int> shared_bytes;   // by device and kernel
};
FunctionLimits& function_limits() {
  static FunctionLimits all;
  return all;
}
int shared_limit_of(const void* kernel) {
  const std::lock_guard lock(function_limits().mutex);
  const auto found = function_limits().shared_bytes.find({current_device(), kernel});
  return found == function_limits().shared_bytes.end() ? 48 << 10 : found->second;
}

cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64) return cudaErrorInvalidConfiguration;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  return shared_bytes > size_t(shared_limit_of(kernel)) ? cudaErrorInvalidValue : cudaSuccess;
}

std::atomic<uint64_t> launches_since_reset{0};

struct FirstLaunchesOfAll {
  struct OfDevice {
    std::vector<std::string> kernels;
    std::set<std::string> known;
    std::optional<size_t> before_exchange;
  };
  std::mutex mutex;
  std::map<int, OfDevice> devices;
};
FirstLaunchesOfAll& first_launches_of_all() {
  static FirstLaunchesOfAll all;
  return all;
}

}  // namespace

void reset_launches() {
  launches_since_reset = 0;
  const std::lock_guard lock(first_launches_of_all().mutex);
  first_launches_of_all().devices.clear();
}

void note_kernel(int device, const std::string& kernel) {
  const std::lock_guard lock(first_launches_of_all().mutex);
  auto& of_device = first_launches_of_all().devices[device];
  if (of_device.known.insert(kernel).second) of_device.kernels.push_back(kernel);
}
void note_exchange(int device) {
  const std::lock_guard lock(first_launches_of_all().mutex);
  auto& of_device = first_launches_of_all().devices[device];
  if (!of_device.before_exchange && !of_device.kernels.empty()) of_device.before_exchange = of_device.kernels.size();
}
FirstLaunches first_launches(int device) {
  const std::lock_guard lock(first_launches_of_all().mutex);
  const auto& of_device = first_launches_of_all().devices[device];
  return {of_device.kernels, of_device.before_exchange.value_or(of_device.kernels.size())};
}

cudaError_t launch_kernel(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::function<void()> body) {
  return api("cudaLaunchKernelEx", [&] {
    if (device_of(stream) != current_device()) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = check_launch(kernel, grid, block, shared_bytes); error != cudaSuccess) return error;
    cudaError_t failure = cudaSuccess;
    const Strike strike = strike_of(name, &failure);
    count_launch(name);
    char address[32];
    std::snprintf(address, sizeof address, " at %p", kernel);
    note_kernel(current_device(), name + std::string(address));
    const uint64_t seed = options().seed + launches_since_reset++;
    auto launch = std::make_shared<Launch>(Launch{name, grid, block, shared_bytes, std::move(body)});
    return enqueue_kernel(stream, {name, [launch, seed] { run_launch(*launch, options().thread_order, seed); }, {}}, strike, failure);
  });
}

}  // namespace trainctl::emulated_gpu

using namespace trainctl::emulated_gpu;

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return api(__func__, [&] {
    if (!function) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > most_shared_bytes(current_device())) return cudaErrorInvalidValue;
    const std::lock_guard lock(function_limits().mutex);
    function_limits().shared_bytes[{current_device(), function}] = value;
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return api(__func__, [&] {
    if (!function) return cudaErrorInvalidDeviceFunction;
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    const DeviceOptions& d = options().devices[size_t(current_device())];
    attributes->ptxVersion = attributes->binaryVersion = 10 * d.major + d.minor;
    attributes->maxDynamicSharedSizeBytes = shared_limit_of(function);
    return cudaSuccess;
  });
}

// ---- copies -------------------------------------------------------------------------------------------------------------------------

namespace {

std::string hex(const void* p) {
  char text[24];
  std::snprintf(text, sizeof text, "%p", p);
  return text;
}

/// Whether a pointer may stand where the kind of copy says; all of it must lie in one allocation.
bool fits(const PlaceOf& place, bool may_be_host, bool may_be_device) {
  return place.place == Place::device ? may_be_device && place.inside : may_be_host;
}

cudaError_t copy_async(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const int device = device_of(stream);
  if (device < 0) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const PlaceOf source = place_of(from, bytes), target = place_of(to, bytes);
  const bool any = kind == cudaMemcpyDefault;
  const bool from_host = kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice;
  const bool to_host = kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost;
  if (!fits(source, any || from_host, any || !from_host) || !fits(target, any || to_host, any || !to_host)) return cudaErrorInvalidValue;
  const bool pageable = source.place == Place::host || target.place == Place::host;
  return enqueue(stream, {"a copy to " + hex(to),
                          [=] {
                            std::memmove(alias(to, bytes), alias(from, bytes), bytes);
                            count_copy(device, pageable);
                          },
                          {}});
}

cudaError_t set_async(void* p, int value, size_t bytes, cudaStream_t stream) {
  const int device = device_of(stream);
  if (device < 0) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const PlaceOf place = place_of(p, bytes);
  if (place.place == Place::host || !place.inside) return cudaErrorInvalidValue;
  return enqueue(stream, {"a fill of " + hex(p),
                          [=] {
                            std::memset(alias(p, bytes), value, bytes);
                            count_memset(device);
                          },
                          {}});
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return api(__func__, [&] { return copy_async(to, from, bytes, kind, stream); });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return api(__func__, [&] { return copy_async(to, from, bytes, cudaMemcpyDefault, stream); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return api(__func__, [&] { return copy_async(to, from, bytes, kind, nullptr); });
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  return api(__func__, [&] { return set_async(p, value, bytes, stream); });
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return api(__func__, [&] { return set_async(p, value, bytes, nullptr); });
}

namespace trainctl::kernels::cuda {
/// Stands in where the host code of kernels/cuda, which has the real one, is not linked.
[[gnu::weak, noreturn]] void throw_cuda_error(const char* op, const char* call, cudaError_t error) {
  trainctl::emulated_gpu::kernel_failed(std::string(op) + ": " + call + ": " + cudaGetErrorName(error));
}
}  // namespace trainctl::kernels::cuda
