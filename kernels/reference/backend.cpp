#include "kernels/host_memory.h"
#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels {

namespace reference {

std::unique_ptr<Stream> ReferenceBackend::create_stream() { return std::make_unique<HostStream>(); }

std::unique_ptr<Buffer> ReferenceBackend::allocate(size_t bytes) { return std::make_unique<HostBuffer>(bytes); }

void ReferenceBackend::copy_to_device(Stream&, void* device, const void* host, size_t bytes) {
  std::memcpy(device, host, bytes);
}

void ReferenceBackend::copy_to_host(Stream&, void* host, const void* device, size_t bytes) {
  std::memcpy(host, device, bytes);
}

}  // namespace reference

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<reference::ReferenceBackend>(); }

}  // namespace trainctl::kernels
