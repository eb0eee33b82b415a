#include "kernels/cuda/ops.h"
#include "runtime/base/error.h"

namespace trainctl::kernels::cuda {

void enqueue(const Queue&, const QuantizeFp4&) {
  throw Error(ErrorCode::kSpec, "NVFP4 is computed on CPUs alone; use another precision.fp8.recipe on GPUs");
}

}  // namespace trainctl::kernels::cuda
