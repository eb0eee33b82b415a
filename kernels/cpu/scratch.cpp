#include "kernels/cpu/scratch.h"

#include <array>
#include <memory>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/device.h"
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

namespace trainctl::kernels {

size_t cpu_scratch_bytes(const ScratchShape& s, int threads) {
  // Attention: for each thread. Sums of norm gradients, by blocks of 16 rows: for the thread that calls
  // the op.
  size_t attention = 0;
  for (const cpu::InstructionSet isa : {cpu::InstructionSet::v2, cpu::InstructionSet::v3, cpu::InstructionSet::v4})
    if (cpu::supports(isa) && s.attention.head_dim > 0) attention = cpu::table_of(isa).attention_scratch_floats(s.attention, true);
  const size_t norms = size_t((s.rows + 15) / 16 * 2 * s.widest);
  return sizeof(float) * (attention * size_t(threads) + norms);
}

}  // namespace trainctl::kernels
