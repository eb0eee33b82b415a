// The supervisor runs attempts until the run is finished or stopped or cannot go on, and reports how the run
// ended.
#pragma once
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/loop/run_end.h"
#include "runtime/supervise/loop/supervise_plan.h"

namespace trainctl {

/// The options of Recovery for this plan.
Recovery::Options recovery_options(const SupervisePlan& plan);

/// Runs attempts to the end of the run; the caller holds the run's lock. The last lines on the console report
/// the outcome. On return no process of the run is left. Throws RunTaken if another supervisor has taken the
/// run; the agents and records belong to it then. Throws another Error only if nothing was started.
RunResult supervise(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                    Console& console);

}  // namespace trainctl
