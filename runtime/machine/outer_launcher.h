// Environment variables that another launcher (srun, mpirun, a PMIx server) set for its own children. They
// mislead libpmix and the ranks: with SLURM_STEP_ID MPI_Init fails, with PMIX_RANK a program believes that it
// is a rank of the outer job.
#pragma once
#include <string_view>

namespace trainctl {

/// Whether the variable `name` belongs to an outer launcher. False for settings that people or a bundle make
/// (PMIX_MCA_*, OMPI_MCA_btl, PMIX_PREFIX).
bool is_of_outer_launcher(std::string_view name);
/// Removes all such variables from this process's environment. Call it before the first thread starts, and
/// after reading the variables that are needed.
void forget_outer_launcher();

}  // namespace trainctl
