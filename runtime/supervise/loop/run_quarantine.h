// A run and the quarantine list: the run reads the list before its first attempt, and adds nodes on which it
// failed repeatedly. If the list cannot be read or written, the run continues.
#pragma once
#include <string>

#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/loop/supervise_plan.h"

namespace trainctl {

void read_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery,
                     Console& console);
/// Adds the nodes of Recovery::take_quarantined to the list, with each failure that put them out.
void tell_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery,
                     RunLog& log);

}  // namespace trainctl
