// What another launcher (srun, mpirun, a PMIx server) has left in the environment for its own children. It
// misleads libpmix and the ranks: with SLURM_STEP_ID MPI_Init refuses, with PMIX_RANK a program takes itself
// for a rank of the outer job.
#pragma once
#include <string_view>

namespace trainctl {

/// Whether the variable `name` belongs to an outer launcher. Settings that people or a bundle make
/// (PMIX_MCA_*, OMPI_MCA_btl, PMIX_PREFIX) do not.
bool is_of_outer_launcher(std::string_view name);
/// Removes them all from this process's environment. Call it before the first thread starts and after reading
/// what is needed.
void forget_outer_launcher();

}  // namespace trainctl
