// trainctl doctor --deep.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "cmd/commands.h"
#include "runtime/machine/burn_in.h"
#include "runtime/observe/doctor.h"

namespace trainctl::cmd {

struct DeepOptions {
  bool quarantine = false;  ///< put what is wrong or slow on the list
  std::string list;         ///< file of the list; "": as `nodes` has it
  int node_cores = 0;       ///< that the node has; 0: not known
};
/// MiB of the host, over all `cores`, and of each GPU that a burn-in tests. `asked_mib` 0: 256 or, if that is
/// more, 16 for each core (less would stay in its caches), but at most a quarter of what is free.
/// Error(kUsage) if it is more than half of what the host or a GPU has free: somebody else uses that.
uint64_t memory_to_test_mib(int asked_mib, size_t cores, const DoctorFacts& facts);
/// Measures the links between the processes that mpirun or srun has started with this line. Rank 0 prints
/// what came out and returns the exit status; the others return 0.
int check_links(const DeepOptions& options, const Context& context);

/// Burns this machine in, prints what came out, and returns the exit status. Shows on stderr what it does.
int check_machine_deeply(const std::vector<BurnInPlace>& places, BurnInOptions burn_in,
                         const DeepOptions& options, const Context& context);

}  // namespace trainctl::cmd
