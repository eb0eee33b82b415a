// A hook for tests, as stop_at.h is one: a rank reports times of its steps that are given, in place of those
// that it measured. So a test has a slow rank, and equal ones, on a machine of any speed and load. The hook
// is off unless the variable is in the rank's environment.
#pragma once
#include <optional>
#include <string>

#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

/// TRAINCTL_TIMES_AT=COMPUTE:WAIT, e.g. "1.5:0": in each step the rank computed for 1.5 s and waited for
/// nothing. Nodes have environments of their own: so one of them is slow.
inline constexpr const char* kTimesAtVariable = "TRAINCTL_TIMES_AT";

struct TimesAt {
  double compute_s = 0, wait_s = 0;

  /// nullopt: `text` is empty. Error(kUsage) if it does not have the form above.
  static std::optional<TimesAt> parse(const std::string& text);
  /// Evaluation, saves and memory are as measured.
  RankTimes of(RankTimes measured) const;
};

}  // namespace trainctl
