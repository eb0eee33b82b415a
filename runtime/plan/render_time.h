// The part of a plan's report about time: what a step takes, and where that goes.
#pragma once
#include <string>

#include "runtime/base/json.h"
#include "runtime/plan/report.h"

namespace trainctl {

/// The lines on FLOPs and time.
std::string time_lines(const PlanReport& report);
/// `report.time`, which must be there, as JSON.
OrderedJson time_json(const PlanReport& report);

}  // namespace trainctl
