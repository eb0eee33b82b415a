// Tests whether ranks can be started through PMIx on this machine, for launcher.start = auto.
//
// A loaded libpmix is not enough: the ranks' MPI library may be built without PMIx, or may silently start as
// a world of one rank. So the test starts two ranks.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/process.h"

namespace trainctl {

struct PmixProbe {
  /// A program that calls MPI_Init, prints a line `world_size N`, calls MPI_Finalize and exits with 0.
  std::vector<std::string> argv;
  Environment settings;  ///< MPI's settings, as for the ranks of a run; they override the server's variables
  std::string host_name;
  double deadline_s = 20;
};

/// None if both ranks finished MPI_Init with world size 2 before the deadline; otherwise one sentence that says
/// what happened. Leaves no process and no file. The server must have no current epoch. The server's events
/// are called with epoch 0.
Problem probe_pmix(PmixServer& server, const PmixProbe& probe);

}  // namespace trainctl
