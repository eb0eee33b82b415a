// The process of one rank: `trainctl rank RUN`, started by mpirun.
#pragma once
#include <string>

namespace trainctl {

/// Runs this process's rank of the run in `run_directory` to its end; returns the exit status. Errors end up in
/// a crash record and in logs/rank-N.log. Does not return where the process must end at once (a failed rank
/// waits for no peer).
/// For `trainctl rank --probe`: MPI_Init, "world_size N" on stdout, MPI_Finalize.
int probe_main();
int rank_main(const std::string& run_directory);

}  // namespace trainctl
