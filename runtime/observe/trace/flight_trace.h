// Makes a trace of the flight rings of an attempt: the last seconds of each rank. Pure.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "runtime/observe/trace/chrome_trace.h"
#include "runtime/run/record/flight_verdict.h"

namespace trainctl::trace {

/// Of at most kMostRanks ranks: those that are missing, those that have waited for longest, then the others
/// by their numbers. What a rank did last goes on until the newest entry of all. `run_id`: for the
/// description.
Trace flight_trace(std::span<const FlightLog> logs, const FlightVerdict& verdict,
                   const parallel::MeshShape& mesh, const std::string& run_id);

}  // namespace trainctl::trace
