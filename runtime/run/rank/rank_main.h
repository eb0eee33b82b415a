// The process of one rank: `trainctl rank RUN`, started by mpirun or, through PMIx, by the agent of its node.
#pragma once
#include <string>

namespace trainctl {

/// `trainctl rank --probe`: calls MPI_Init, prints "world_size N" on stdout, calls MPI_Finalize. Returns 0.
int probe_main();
/// `trainctl rank --exchange`, of two ranks: they exchange buffers of several sizes, and rank 0 prints a line
/// "exchange BYTES SECONDS" for each, the median of many. Returns 0.
int exchange_main();
/// Runs this process's rank of the run in `run_directory` to its end and returns the exit status. Writes a
/// failure to a crash record and to logs/rank-N.log, then exits the process without returning, because a
/// failed rank must not wait for peers.
int rank_main(const std::string& run_directory);

}  // namespace trainctl
