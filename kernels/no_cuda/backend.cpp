// The CUDA backend's twin in a build without a CUDA toolkit: it is absent, and says so.
#include "kernels/device.h"
#include "runtime/base/error.h"

namespace trainctl::kernels {
namespace {

constexpr const char* kAbsent =
    "this trainctl was built without CUDA; install a CUDA toolkit of version 12 or 13 and build again with -DTRAINCTL_CUDA=ON, "
    "or use \"device\": \"cpu\"";

}  // namespace

bool has_cuda() { return false; }
CudaStatus cuda_status() { return {.problem = kAbsent}; }

GpuFacts gpu_facts(int, bool) { throw Error(ErrorCode::kPreflight, kAbsent); }

std::function<GpuReadings()> open_gpu_readings(int) {
  return [] { return GpuReadings{}; };
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) { throw Error(ErrorCode::kPreflight, kAbsent); }

std::string cuda_numerics(int) { throw Error(ErrorCode::kPreflight, kAbsent); }

}  // namespace trainctl::kernels
