#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels {

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<reference::ReferenceBackend>(); }

}  // namespace trainctl::kernels
