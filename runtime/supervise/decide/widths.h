// The data-parallel widths at which a job trains with the same bits.
#pragma once
#include <vector>

#include "runtime/spec/parse.h"
#include "runtime/supervise/decide/recovery.h"

namespace trainctl {

/// The job's own width, then every smaller width that its spec allows, largest first. Only the own width if
/// the job is not elastic. Made at launch.
std::vector<Width> widths_of(const ParsedJob& job);
/// The PATH=VALUE overrides that give the job that width; empty for the job's own width.
std::vector<std::string> overrides_of(const ParsedJob& job, const Width& width);
ParsedJob at_width(const ParsedJob& job, const Width& width);

}  // namespace trainctl
