// Binds ranks and threads to cores.
#pragma once
#include <string>
#include <vector>

namespace trainctl {

/// The CPUs for each of `ranks` processes on this machine, in Linux's form ("0-3,8"). The parts are disjoint
/// and of equal size, and use as few caches and NUMA nodes as possible (hwloc). Only cores that this process
/// may use are taken. Empty if there are fewer than ranks * threads cores or hwloc does not know the machine.
///   gpus   PCI bus ids of the GPUs of the ranks ("0000:1b:00.0"), or none. Each rank then has cores near its
///          GPU, if hwloc knows where all are and there are enough; otherwise as without.
std::vector<std::string> cores_for(int ranks, int threads, const std::vector<std::string>& gpus = {});

/// Binds this process to the cores of `local_rank` of `local_ranks`. Call it before the process starts
/// threads. Returns the cores; "" if the process was not bound.
std::string bind_rank(int local_rank, int local_ranks, int threads,
                      const std::vector<std::string>& gpus = {});

/// The CPUs that this process may use, however many the machine may have; empty: the kernel does not tell.
std::vector<int> usable_cpus();
/// Binds the calling thread; false: it was not bound.
bool bind_thread(int cpu);

}  // namespace trainctl
