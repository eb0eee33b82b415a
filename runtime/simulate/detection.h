// When the supervisor knows of a failure, and what it takes it for: the answer of Supervision, which decides
// that in a run, for a run of two ranks on two nodes. Pure.
#pragma once
#include "runtime/base/error.h"
#include "runtime/simulate/failures.h"
#include "runtime/spec/fields/job.h"

namespace trainctl::simulate {

struct Detection {
  Ns evidence = 0;    ///< from the failure to the first evidence
  Ns collecting = 0;  ///< from there to the order to end all ranks
  ErrorCode code = ErrorCode::kWorker;
  bool is_lost_node = false;
};

/// Of crash, device, hang and node.
Detection detect(Effect effect, const FaultSpec& fault);

}  // namespace trainctl::simulate
