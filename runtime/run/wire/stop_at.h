// A hook for tests of supervision: a rank of the first epoch that stops itself (SIGSTOP) at a chosen point of
// a real run, so that no test has to hit that point by luck. Without the variable in its environment a rank
// does nothing of this.
#pragma once
#include <optional>
#include <string>

#include "runtime/base/activity.h"

namespace trainctl {

/// TRAINCTL_STOP_AT=RANK:PHASE[:STEP[:WAIT]], e.g. "1:loading", "0:forward:3", "2:forward:3:tp group" or "1:starting::MPI_Init".
inline constexpr const char* kStopAtVariable = "TRAINCTL_STOP_AT";
inline constexpr const char* kInProgress = "progress";

struct StopAt {
  int rank = -1;
  RunPhase phase = RunPhase::starting;
  int64_t step = -1;          ///< from this step on; -1: any
  /// While it waits in a communicator or an operation whose name begins so; "": while it computes;
  /// "progress": while it computes and has done a part of the phase, for example has written a part of its
  /// shard.
  std::string wait;

  /// Nothing if the text is empty. Error(kUsage) if it is not of that form.
  static std::optional<StopAt> parse(const std::string& text);
  bool matches(const Activity& activity) const;
};

}  // namespace trainctl
