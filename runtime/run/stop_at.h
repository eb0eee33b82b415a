// A hook for tests of supervision: a rank that stops itself (SIGSTOP) at a chosen point of a real run, so that no test has to hit that
// point by luck. Without the variable in its environment a rank knows nothing of it.
#pragma once
#include <optional>
#include <string>

#include "runtime/base/activity.h"

namespace trainctl {

/// TRAINCTL_STOP_AT=RANK:PHASE[:STEP[:WAIT]], e.g. "1:loading", "0:forward:3", "2:forward:3:tp group" or "1:starting::MPI_Init".
inline constexpr const char* kStopAtVariable = "TRAINCTL_STOP_AT";

struct StopAt {
  int rank = -1;
  RunPhase phase = RunPhase::starting;
  int64_t step = -1;          ///< from this step on; -1: any
  std::string wait;           ///< while it waits in a communicator or an operation whose name begins so; "": while it computes

  /// Nothing if the text is empty. Error(kUsage) if it is not of that form.
  static std::optional<StopAt> parse(const std::string& text);
  bool matches(const Activity& activity) const;
};

}  // namespace trainctl
