// The state of a run as Prometheus reads it (text format 0.0.4): trainctl.prom in the run's folder, for the
// textfile collector of node_exporter. Derived from RunStatus and TimeLedger alone; every sample has the
// label `run`.
#pragma once
#include <string>

#include "runtime/run/record/run_status.h"
#include "runtime/run/record/time_ledger.h"

namespace trainctl {

/// Numbers that the run does not have (yet) are left out. `time`: what its time was spent on; null: not known
/// yet.
std::string prometheus_text(const RunStatus& status, const TimeLedger* time = nullptr);

}  // namespace trainctl
