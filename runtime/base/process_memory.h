// How much memory this process has taken.
#pragma once
#include <cstdint>
#include <string>

namespace trainctl {

/// Largest resident size of this process so far in bytes (VmHWM: libraries, shared memory and mapped files included); 0 where the
/// system does not tell.
uint64_t peak_resident_bytes();

/// What a std::bad_alloc means, in one sentence: how much this process had taken, the limit that holds it if there is one, and what to do.
std::string out_of_memory_text();

}  // namespace trainctl
