// Which cores a rank runs on.
#pragma once
#include <string>
#include <vector>

namespace trainctl {

/// CPUs of each of `ranks` processes of this machine, as Linux writes them ("0-3,8"): `ranks` even, disjoint parts of the cores that
/// this process may use, each within as few caches and NUMA nodes as possible (hwloc). Empty where there are fewer than
/// ranks x threads cores, or where the machine does not say how it is built.
std::vector<std::string> cores_for(int ranks, int threads);

/// Binds this process, before it has started threads, to the cores of `local_rank`. Returns them, "" if it was left unbound.
std::string bind_rank(int local_rank, int local_ranks, int threads);

}  // namespace trainctl
