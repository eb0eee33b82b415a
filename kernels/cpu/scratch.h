// Scratch memory of a thread. It grows to the largest request and stays allocated.
#pragma once
#include <cstddef>

namespace trainctl::kernels::cpu {

/// The use of the memory. Two uses that overlap in time on one thread need different values.
enum class ScratchUse { op, task, product, widened_left, widened_right, widened_out, spread, kCount };

/// At least `bytes` of this thread's scratch memory, 64-byte aligned, with undefined contents. Valid until
/// this thread's next call with the same use.
void* scratch(ScratchUse use, size_t bytes);

inline float* scratch_floats(ScratchUse use, size_t count) {
  return static_cast<float*>(scratch(use, count * sizeof(float)));
}

}  // namespace trainctl::kernels::cpu
