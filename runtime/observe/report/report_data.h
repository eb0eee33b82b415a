// The data of the report page: one JSON value from the data of one run or of several. Pure.
#pragma once
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/report/run_data.h"

namespace trainctl::report {

/// How much of a run the page gets. The curves of a run with more steps show some of them, with their own
/// numbers (shown_rows).
struct ReportLimits {
  size_t steps = 2000, events = 900, rank_cells = 16000, expert_cells = 8000;
};

/// {"v": 1, "program": "0.1.0", "made": unix time, "runs": [...], "differences": [...]}. A run: its name,
/// state and numbers ("summary", "time", "facts"), and what the other files of this folder make of it
/// ("curves", "happenings", "ranks", "experts", "plan", "spec"). Times are seconds since "begin" of the run, other
/// units are in the names; a number that is not known is null, a part without any is left out.
OrderedJson report_json(const std::vector<const RunData*>& runs, double now_unix_s,
                                   const ReportLimits& limits = {});

}  // namespace trainctl::report
