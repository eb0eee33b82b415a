// Finds out whether ranks can be started through PMIx on this machine, for launcher.start = auto.
//
// That libpmix is there does not show it: the MPI library of the ranks may be built without PMIx, or take
// itself for a program without a launcher and become a world of its own, silently. So two ranks are started.
#pragma once
#include <string>
#include <vector>

#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/process.h"

namespace trainctl {

struct PmixProbe {
  /// A program that calls MPI_Init, prints `world_size N` on a line of its own, calls MPI_Finalize and exits
  /// with 0.
  std::vector<std::string> argv;
  Environment settings;  ///< MPI's, as the ranks of a run get them; they win over the server's
  std::string host_name;
  double deadline_s = 20;
};

/// "" if both ranks got through MPI_Init and saw each other before the deadline; otherwise one sentence that
/// says what happened instead. Nothing of them is left afterwards. No epoch may be under way; the caller's
/// events are called with epoch 0.
std::string probe_pmix(PmixServer& server, const PmixProbe& probe);

}  // namespace trainctl
