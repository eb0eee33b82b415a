// The NCCL communicator in a build without CUDA: every call reports that it is absent.
#include "parallel/communicator.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

constexpr const char* kAbsent = "this trainctl was built without CUDA, so it has no NCCL; build it with -DTRAINCTL_CUDA=ON";

}  // namespace

NcclStatus nccl_status() { return {.problem = kAbsent}; }

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator>, kernels::Backend&, double,
                                                     Traffic, const NcclSettings&) {
  throw Error(ErrorCode::kPreflight, kAbsent);
}

}  // namespace trainctl::parallel
