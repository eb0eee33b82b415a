#include "kernels/backend.h"
#include "runtime/plan/plan.h"

namespace trainctl {

PackedBytes cpu_packed_bytes() {
  const std::shared_ptr<kernels::Backend> backend = kernels::make_cpu_backend(1);
  return [backend](int64_t n, int64_t k, DType dtype) { return backend->make_packed(n, k, dtype)->bytes(); };
}

double measure_rank_flops_per_s(const JobSpec& job) {
  const auto backend = kernels::make_cpu_backend(job.parallelism.threads_per_rank);
  return kernels::measure_matmul_flops_per_s(*backend, job.compute);
}

}  // namespace trainctl
