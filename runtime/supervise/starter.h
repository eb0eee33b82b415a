// What starts the ranks where the job leaves it open: PMIx where it works, mpirun otherwise.
#pragma once
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/machine/mpirun.h"

namespace trainctl {

/// "" if ranks can be started through PMIx on this machine: two were, and saw each other. Otherwise one sentence. The answer is
/// kept in `cache` ("": nowhere) as long as program, MPI library and libpmix are the same files. Starts processes.
std::string pmix_start_problem(const LaunchLine& rank, FileSystem& fs, const std::string& cache);

/// $XDG_CACHE_HOME/trainctl/starts.json, or the same below ~/.cache; "" where neither is known.
std::string starts_cache_path();

}  // namespace trainctl
