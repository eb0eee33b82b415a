// Working memory of a thread: grows to the largest request and is kept.
#pragma once
#include <cstddef>

namespace trainctl::kernels::cpu {

/// Who uses it; two uses that overlap in time on one thread need two names.
enum class ScratchUse { op, task, product, widened_left, widened_right, widened_out, kCount };

/// At least `bytes` of this thread's memory, 64-byte aligned, contents undefined; valid until the next call with the
/// same use.
void* scratch(ScratchUse use, size_t bytes);

inline float* scratch_floats(ScratchUse use, size_t count) {
  return static_cast<float*>(scratch(use, count * sizeof(float)));
}

}  // namespace trainctl::kernels::cpu
