// The absent twin of runtime/machine/pmix/pmix_service.cpp: this build has seen no header of PMIx.
#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/pmix/pmix_service.h"

namespace trainctl {

Problem pmix_problem() {
  return Problem(
      "this trainctl was built without PMIx (pmix_server.h was not found); use launcher.start mpirun, or "
      "build with libpmix-dev");
}

void serve_pmix(int) {}

}  // namespace trainctl
