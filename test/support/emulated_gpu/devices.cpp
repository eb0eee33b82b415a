// The fake CUDA runtime: devices, errors, and failures on request.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "test/support/emulated_gpu/machine.h"

namespace trainctl::emulated_gpu {
namespace {

struct CallRule {
  std::string function;
  int n;
  cudaError_t error;
};
struct KernelRule {
  std::string op;
  int n;
  Strike strike;
  cudaError_t error;
};

struct Devices {
  std::mutex mutex;
  Options options = options_from_environment();
  std::vector<cudaError_t> sticky = std::vector<cudaError_t>(options.devices.size(), cudaSuccess);
  std::vector<CallRule> call_rules;
  std::vector<KernelRule> kernel_rules;
  std::map<std::string, uint64_t> launches;
  unsigned epoch = 0;
};
Devices& devices() {
  static Devices all;
  return all;
}

struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  unsigned epoch = 0;
};
/// Of this thread; as at its beginning after a reset.
ThreadState& thread_state() {
  static thread_local ThreadState state;
  const unsigned epoch = devices().epoch;
  if (state.epoch != epoch) state = {0, cudaSuccess, epoch};
  return state;
}

/// Functions that say nothing about the device, and so go on when it has failed. Not cudaGetDevice, which by its manual may return the
/// errors of earlier launches.
bool survives_failure(std::string_view function) {
  for (const std::string_view name : {"cudaSetDevice", "cudaGetDeviceCount", "cudaDriverGetVersion",
                                      "cudaRuntimeGetVersion", "cudaDeviceReset"})
    if (function == name) return true;
  return false;
}

template <typename Value, size_t kCount>
Value choice(const char* variable, Value value, const std::pair<const char*, Value> (&names)[kCount]) {
  const char* const text = std::getenv(variable);
  if (!text || !*text) return value;
  for (const auto& [name, meaning] : names)
    if (std::strcmp(text, name) == 0) return meaning;
  std::fprintf(stderr, "emulated GPU: %s=%s is none of its values\n", variable, text);
  std::abort();
}

}  // namespace

Options options_from_environment() {
  Options o;
  o.thread_order = choice<OrderKind>("EMULATED_GPU_ORDER", o.thread_order, {{"forward", OrderKind::forward},
                                                                            {"reverse", OrderKind::reverse},
                                                                            {"random", OrderKind::random}});
  o.stream_mode = choice<StreamMode>("EMULATED_GPU_STREAMS", o.stream_mode, {{"eager", StreamMode::eager},
                                                                             {"lazy", StreamMode::lazy},
                                                                             {"random", StreamMode::random}});
  if (const char* const name = std::getenv("EMULATED_GPU_NAME")) o.devices.front().name = name;
  if (const char* const queues = std::getenv("EMULATED_GPU_QUEUES")) o.queues = std::atoi(queues);
  if (const char* const seed = std::getenv("EMULATED_GPU_SEED")) o.seed = std::strtoull(seed, nullptr, 10);
  return o;
}

const Options& options() { return devices().options; }

void reset(const Options& options) {
  reset_streams(options);
  Devices& d = devices();
  {
    const std::lock_guard lock(d.mutex);
    d.options = options;
    d.sticky.assign(options.devices.size(), cudaSuccess);
    d.call_rules.clear();
    d.kernel_rules.clear();
    d.launches.clear();
    ++d.epoch;
  }
  reset_memory();
  reset_launches();
}
void reset() { reset(options_from_environment()); }

std::string leaks() { return stream_leaks() + memory_leaks(); }

void fail_call(const std::string& function, int n, cudaError_t error) {
  const std::lock_guard lock(devices().mutex);
  devices().call_rules.push_back({function, n, error});
}
void fail_kernel(const std::string& op, int n, cudaError_t error) {
  const std::lock_guard lock(devices().mutex);
  devices().kernel_rules.push_back({op, n, Strike::fail, error});
}
void hang_kernel(const std::string& op, int n) {
  const std::lock_guard lock(devices().mutex);
  devices().kernel_rules.push_back({op, n, Strike::hang, cudaSuccess});
}
void fail_device(int device, cudaError_t error) {
  const std::lock_guard lock(devices().mutex);
  devices().sticky.at(size_t(device)) = error;
}

Strike strike_of(const std::string& op, cudaError_t* error) {
  const std::lock_guard lock(devices().mutex);
  Strike strike = Strike::none;
  for (KernelRule& rule : devices().kernel_rules) {
    if (!rule.op.empty() && rule.op != op) continue;
    if (--rule.n == 0) strike = rule.strike, *error = rule.error;
  }
  std::erase_if(devices().kernel_rules, [](const KernelRule& rule) { return rule.n <= 0; });
  return strike;
}
void count_launch(const std::string& op) {
  const std::lock_guard lock(devices().mutex);
  ++devices().launches[op];
}
uint64_t launches_of(const std::string& op) {
  const std::lock_guard lock(devices().mutex);
  const auto found = devices().launches.find(op);
  return found == devices().launches.end() ? 0 : found->second;
}

cudaError_t gate(const char* function) {
  const ThreadState& state = thread_state();
  Devices& d = devices();
  const std::lock_guard lock(d.mutex);
  cudaError_t error = cudaSuccess;
  for (CallRule& rule : d.call_rules)
    if (rule.function == function && --rule.n == 0) error = rule.error;
  std::erase_if(d.call_rules, [](const CallRule& rule) { return rule.n <= 0; });
  if (error != cudaSuccess || survives_failure(function)) return error;
  if (d.sticky.empty()) return cudaErrorNoDevice;
  return d.sticky[size_t(state.device)];
}
cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) thread_state().last_error = error;
  return error;
}
int current_device() { return thread_state().device; }
int device_count() { return int(options().devices.size()); }
cudaError_t sticky_error(int device) {
  const std::lock_guard lock(devices().mutex);
  return devices().sticky.at(size_t(device));
}
int most_shared_bytes(int device) {
  const DeviceOptions& d = options().devices.at(size_t(device));
  const int version = 10 * d.major + d.minor;
  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
  const int kib = version >= 120 ? 99 : version >= 90 ? 227 : version == 80 || version == 87 ? 163 : 99;
  return kib << 10;
}

}  // namespace trainctl::emulated_gpu

using namespace trainctl::emulated_gpu;

namespace {

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading", "driver shutting down"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorStubLibrary, "cudaErrorStubLibrary", "CUDA driver is a stub library"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch", "system has unsupported display driver / cuda driver combination"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
const ErrorText* error_text(cudaError_t error) {
  for (const ErrorText& e : kErrors)
    if (e.error == error) return &e;
  return nullptr;
}

bool exists(int device) { return device >= 0 && device < device_count(); }

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const e = error_text(error);
  return e ? e->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const e = error_text(error);
  return e ? e->text : "unrecognized error code";
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  thread_state().last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  const ThreadState& state = thread_state();
  if (exists(state.device) && sticky_error(state.device) != cudaSuccess) return sticky_error(state.device);
  return state.last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return api(__func__, [&] {
    *count = device_count();
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}
cudaError_t cudaSetDevice(int device) {
  return api(__func__, [&] {
    if (device_count() == 0) return cudaErrorNoDevice;
    if (!exists(device)) return cudaErrorInvalidDevice;
    thread_state().device = device;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* device) {
  return api(__func__, [&] {
    *device = current_device();
    return device_count() > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return api(__func__, [&] { return exists(device) ? cudaSuccess : cudaErrorInvalidDevice; });
}
cudaError_t cudaSetDeviceFlags(unsigned) {
  return api(__func__, [] { return cudaSuccess; });
}
cudaError_t cudaDeviceReset() {
  return api(__func__, [] { return synchronize_device(current_device()); });
}
cudaError_t cudaDriverGetVersion(int* version) {
  return api(__func__, [&] {
    *version = options().driver_version;
    return cudaSuccess;
  });
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return api(__func__, [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return api(__func__, [&] {
    *can = 0;
    return exists(device) && exists(peer) ? cudaSuccess : cudaErrorInvalidDevice;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return api(__func__, [&] { return exists(peer) ? cudaErrorNotSupported : cudaErrorInvalidDevice; });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api(__func__, [&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api(__func__, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    const DeviceOptions& d = options().devices[size_t(device)];
    cudaDeviceProp p{};
    std::snprintf(p.name, sizeof p.name, "%s", d.name.c_str());
    for (int i = 0; i < 16; ++i) p.uuid.bytes[i] = char(0x10 + device + i);
    p.totalGlobalMem = d.memory_bytes;
    p.sharedMemPerBlock = 48 << 10;
    p.sharedMemPerBlockOptin = size_t(most_shared_bytes(device));
    p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin + 1024;
    p.regsPerBlock = 65536;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 0x7fffffff;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.major = d.major;
    p.minor = d.minor;
    p.multiProcessorCount = d.multiprocessors;
    p.l2CacheSize = 50 << 20;
    p.pciBusID = device + 1;
    p.ECCEnabled = p.canMapHostMemory = p.unifiedAddressing = 1;
    p.memoryBusWidth = 5120;
    *properties = p;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api(__func__, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    const DeviceOptions& d = options().devices[size_t(device)];
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
      case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
      case cudaDevAttrWarpSize: *value = 32; break;
      case cudaDevAttrClockRate: *value = 1'980'000; break;
      case cudaDevAttrMultiProcessorCount: *value = d.multiprocessors; break;
      case cudaDevAttrEccEnabled: *value = 1; break;
      case cudaDevAttrPciBusId: *value = device + 1; break;
      case cudaDevAttrPciDeviceId: *value = 0; break;
      case cudaDevAttrPciDomainId: *value = 0; break;
      case cudaDevAttrMemoryClockRate: *value = 2'619'000; break;
      case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
      case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
      case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
      case cudaDevAttrUnifiedAddressing: *value = 1; break;
      case cudaDevAttrComputeCapabilityMajor: *value = d.major; break;
      case cudaDevAttrComputeCapabilityMinor: *value = d.minor; break;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = most_shared_bytes(device) + 1024; break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = most_shared_bytes(device); break;
      default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return api(__func__, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    if (length < 13) return cudaErrorInvalidValue;
    std::snprintf(id, size_t(length), "0000:%02X:00.0", device + 1);
    return cudaSuccess;
  });
}
