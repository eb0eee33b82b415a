// How much memory this process has used, and how much this machine has.
#pragma once
#include <cstdint>
#include <string>

namespace trainctl {

/// The largest resident size of this process so far, in bytes (VmHWM, which includes libraries, shared memory
/// and mapped files); 0 if the system does not report it.
uint64_t peak_resident_bytes();

/// Limits the heaps that the threads of this process share to `heaps`. glibc moves a thread to a further heap
/// when it finds its own locked, and each heap keeps what was freed in it. Without a limit, the memory of a
/// rank depends on the moments at which its threads meet (6 MiB of 100 were seen).
void limit_heaps(int heaps);

struct SystemMemory {
  uint64_t total_bytes = 0, available_bytes = 0;  ///< 0: not reported
};
/// The memory in a text of /proc/meminfo.
SystemMemory system_memory_of(const std::string& meminfo);
/// The memory of this machine.
SystemMemory system_memory();

/// The message for a std::bad_alloc, one sentence: the peak memory of this process, its address-space limit
/// (ulimit -v) if one is set, and what to do.
std::string out_of_memory_text();

}  // namespace trainctl
