// The GPUs of this machine, and the backend of one of them.
#include <array>
#include <cstdlib>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nvml.h"
#include "kernels/driver_floor.h"
#include "runtime/base/error.h"

namespace trainctl::kernels {

namespace {

constexpr int kOldestMajor = 8;   // Ampere: bf16 on the tensor cores, asynchronous copies into shared memory
constexpr int kOldestMinor = 0;

/// Why there is no GPU, in one sentence.
std::string reason_of(cudaError_t error, const CudaStatus& status) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      if (status.driver_version == 0)
        return fmt::format("no NVIDIA driver is loaded here; install {} (in a container: start it with the NVIDIA "
                           "runtime, --gpus all), or use \"device\": \"cpu\"",
                           driver_floor_text(status.runtime_version));
      return fmt::format("the NVIDIA driver {} is too old for this trainctl; update it", cuda::management_driver_version());
    case cudaErrorNoDevice:
      return "the NVIDIA driver sees no GPU; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use \"device\": \"cpu\"";
    case cudaErrorStubLibrary:
      return "a stub of libcuda.so stands before the driver's; take the toolkit's folder `stubs` out of LD_LIBRARY_PATH";
    default:
      return fmt::format("CUDA does not start: {}: {}; look at `nvidia-smi`", cudaGetErrorName(error), cudaGetErrorString(error));
  }
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda::check_cuda(cudaDeviceGetAttribute(&value, which, device), "start", "cudaDeviceGetAttribute");
  return value;
}

void require_device(int index) {
  const CudaStatus status = cuda_status();
  if (!status.problem.empty()) throw Error(ErrorCode::kPreflight, status.problem);
  if (index < 0 || index >= status.devices)
    throw Error(ErrorCode::kPreflight, fmt::format("GPU {} was asked for, but there are {} here, counted from 0; start at most as many ranks "
                                                   "per node, and see CUDA_VISIBLE_DEVICES",
                                                   index, status.devices));
}

std::string name_of_gpu(int index) {
  cudaDeviceProp properties{};
  cuda::check_cuda(cudaGetDeviceProperties(&properties, index), "start", "cudaGetDeviceProperties");
  return properties.name;
}

bool environment_asks_for_checks() {
  const char* value = std::getenv("TRAINCTL_CUDA_CHECK");
  return value && std::string_view(value) == "1";
}

}  // namespace

bool has_cuda() { return true; }

CudaStatus cuda_status() {
  CudaStatus status{.built = true};
  (void)cudaRuntimeGetVersion(&status.runtime_version);
  if (cudaDriverGetVersion(&status.driver_version) != cudaSuccess) status.driver_version = 0;
  if (status.driver_version > 0)
    status.problem =
        driver_problem(status.driver_version, cuda::management_driver_version(), status.runtime_version)
            .text_or_empty();
  if (!status.problem.empty()) {
    status.driver_too_old = true;
    return status;
  }
  const cudaError_t error = cudaGetDeviceCount(&status.devices);
  (void)cudaGetLastError();   // clears it, or the next call would report it
  if (error != cudaSuccess || status.devices == 0) {
    status.devices = 0;
    status.problem = reason_of(error == cudaSuccess ? cudaErrorNoDevice : error, status);
  }
  return status;
}

GpuFacts gpu_facts(int index, bool may_make_context) {
  require_device(index);
  cudaDeviceProp properties{};
  cuda::check_cuda(cudaGetDeviceProperties(&properties, index), "start", "cudaGetDeviceProperties");
  GpuFacts facts{.index = index,
                 .name = properties.name,
                 .driver = "",
                 .compute_major = properties.major,
                 .compute_minor = properties.minor,
                 .multiprocessors = properties.multiProcessorCount,
                 .total_bytes = properties.totalGlobalMem};
  std::array<char, 32> bus_id{};
  if (cudaDeviceGetPCIBusId(bus_id.data(), int(bus_id.size()), index) == cudaSuccess) facts.pci_bus_id = bus_id.data();
  cuda::add_management_facts(facts);
  if (facts.free_bytes > 0 || !may_make_context) return facts;
  int before = 0;
  if (cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(index) == cudaSuccess) {
    (void)cudaMemGetInfo(&facts.free_bytes, &facts.total_bytes);
    if (before != index) (void)cudaSetDevice(before);
  }
  return facts;
}

std::function<GpuReadings()> open_gpu_readings(int index) {
  std::array<char, 32> bus_id{};
  if (cudaDeviceGetPCIBusId(bus_id.data(), int(bus_id.size()), index) != cudaSuccess) return [] { return GpuReadings{}; };
  return cuda::management_readings(bus_id.data());
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& asked) {
  require_device(asked.device);
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, asked.device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, asked.device);
  if (major < kOldestMajor || (major == kOldestMajor && minor < kOldestMinor))
    throw Error(ErrorCode::kPreflight,
                fmt::format("GPU {} ({}) has compute capability {}.{}; trainctl needs {}.{} (A100) or later, or \"device\": \"cpu\"",
                            asked.device, name_of_gpu(asked.device), major, minor, kOldestMajor, kOldestMinor));
  CudaOptions options = asked;
  options.check_each_op = options.check_each_op || environment_asks_for_checks();
  return std::make_unique<cuda::CudaBackend>(options);
}

std::string cuda_numerics(int index) {
  require_device(index);
  // The library's choice of algorithms also depends on the number of multiprocessors.
  return fmt::format("cuda sm_{}{} {} SMs cuBLASLt {}", attribute(cudaDevAttrComputeCapabilityMajor, index),
                     attribute(cudaDevAttrComputeCapabilityMinor, index), attribute(cudaDevAttrMultiProcessorCount, index),
                     cuda::cublaslt().version);
}

}  // namespace trainctl::kernels
