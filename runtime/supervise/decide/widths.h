// The data-parallel widths that a job can have without a bit of its training changing.
#pragma once
#include <vector>

#include "runtime/spec/parse.h"
#include "runtime/supervise/decide/recovery.h"

namespace trainctl {

/// The job's own width first, then every smaller one that its spec allows; the own one alone if the job is
/// not elastic.
std::vector<Width> widths_of(const ParsedJob& job);
/// What `-s` would make of the job at that width; nothing where it is the job's own.
std::vector<std::string> overrides_of(const ParsedJob& job, const Width& width);
ParsedJob at_width(const ParsedJob& job, const Width& width);

}  // namespace trainctl
