// The schedule merged-1f1b, which the program knows as a row of the table alone.
#pragma once
#include "parallel/schedules.h"

namespace trainctl::parallel {

/// Held to its name by pipeline_test.
inline constexpr Schedule kMergedSchedule{6};

}  // namespace trainctl::parallel
