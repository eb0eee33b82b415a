#include "kernels/cpu/scratch.h"

#include <array>
#include <memory>

#include "kernels/host_memory.h"

namespace trainctl::kernels::cpu {

void* scratch(ScratchUse use, size_t bytes) {
  thread_local std::array<std::unique_ptr<HostBuffer>, size_t(ScratchUse::kCount)> buffers;
  std::unique_ptr<HostBuffer>& buffer = buffers[size_t(use)];
  if (!buffer || buffer->bytes() < bytes) {
    buffer.reset();
    buffer = std::make_unique<HostBuffer>(bytes);
  }
  return static_cast<Buffer&>(*buffer).data();
}

}  // namespace trainctl::kernels::cpu
