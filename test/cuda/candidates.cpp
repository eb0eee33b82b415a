// The backend of this program's tests: the first GPU, real or emulated.
#include "kernels/device.h"
#include "test/kernels/support.h"
#include "test/support/host_facing_backend.h"

namespace trainctl::kernels::test {

const std::vector<DType> kActivationTypes = {DType::f32, DType::bf16};

const std::vector<Candidate>& candidates() {
  // Never destroyed: at the end of the process the GPU may go first.
  static const auto* all = new std::vector<Candidate>{{.name = "cuda",
                                                       .family = "cuda",
                                                       .backend = make_host_facing(make_cuda_backend({})),
                                                       .products_by_alignment = true}};
  return *all;
}

}  // namespace trainctl::kernels::test
