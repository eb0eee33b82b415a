#include "kernels/backend.h"

#include "kernels/host_memory.h"
#include "kernels/plain_weight.h"
#include "kernels/reference/compute.h"

namespace trainctl::kernels {
namespace {

class ReferenceBackend final : public HostDevice {
 public:
  std::string name() const override { return "reference"; }
  std::string numerics() const override { return "reference"; }
  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return PlainWeight::make(n, k, dtype);
  }
  void run(Stream&, const Op& op) override {
    std::visit([](const auto& o) { o.check(), reference::compute(o); }, op);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace trainctl::kernels
