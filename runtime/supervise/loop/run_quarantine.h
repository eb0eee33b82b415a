// What a run does with the list of nodes in quarantine: it reads the list before the first attempt, and adds
// nodes on which it failed again and again. A list that cannot be read or written stops no run.
#pragma once
#include <string>

#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/loop/supervisor.h"

namespace trainctl {

void read_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery,
                     Console& console);
/// `cause` of the last failure.
void tell_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery, RunLog& log,
                     const std::string& cause);

}  // namespace trainctl
