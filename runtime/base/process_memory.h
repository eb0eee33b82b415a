// How much memory this process has used, and how much it may use on this machine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trainctl {

/// The largest resident size of this process so far, in bytes (VmHWM, which includes libraries, shared memory
/// and mapped files); 0 if the system does not report it.
uint64_t peak_resident_bytes();
/// The resident size now, in bytes; 0 if the system does not report it. Does not allocate.
uint64_t resident_bytes();

/// Limits the heaps that the threads of this process share to `heaps`. glibc moves a thread to a further heap
/// when it finds its own locked, and each heap keeps what was freed in it. Without a limit, the memory of a
/// rank depends on the moments at which its threads meet (6 MiB of 100 were seen).
void limit_heaps(int heaps);

struct SystemMemory {
  uint64_t total_bytes = 0, available_bytes = 0;  ///< 0: not reported
};
/// The memory in a text of /proc/meminfo.
SystemMemory system_memory_of(const std::string& meminfo);
/// The memory of the whole machine.
SystemMemory machine_memory();

/// A control group that limits memory, as batch systems and containers do.
struct GroupMemory {
  uint64_t limit_bytes = 0;  ///< 0: none
  uint64_t used_bytes = 0;   ///< without cached files, which the system gives back when memory gets scarce
};
/// From the texts of a group's files: memory.max, memory.current and memory.stat, or those of version 1.
GroupMemory group_memory_of(const std::string& limit, const std::string& used, const std::string& stat);
/// The folders of a process's control group and of those above it, innermost first, from the text of
/// /proc/self/cgroup. `controller` "": the groups of version 2, else those of version 1 for this controller.
std::vector<std::string> control_groups_of(const std::string& cgroup, const std::string& controller);
/// Those of this process that limit memory.
std::vector<GroupMemory> memory_groups();
/// What a process may use that is in all of these groups.
SystemMemory within_groups(SystemMemory machine, const std::vector<GroupMemory>& groups);
/// What this process may use: the memory of the machine, within its control groups.
SystemMemory system_memory();

/// The message for a std::bad_alloc, one sentence: the peak memory of this process, its address-space limit
/// (ulimit -v) if one is set, and what to do.
std::string out_of_memory_text();
/// The same where `what` failed because there are no more descriptors: how many this process has, and its
/// limit (ulimit -n).
std::string out_of_descriptors_text(const std::string& what);

}  // namespace trainctl
