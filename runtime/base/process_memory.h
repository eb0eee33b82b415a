// How much memory this process has taken.
#pragma once
#include <cstdint>

namespace trainctl {

/// Largest resident size of this process so far in bytes (VmHWM: libraries, shared memory and mapped files included); 0 where the
/// system does not tell.
uint64_t peak_resident_bytes();

}  // namespace trainctl
