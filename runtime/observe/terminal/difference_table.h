// The fields in which specs differ, as a table for a terminal of any width. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/observe/report/spec_rows.h"

namespace trainctl::terminal {

/// A header and a line for each field: its value in each of the specs `names`, with its origin, cut where the
/// terminal is narrow. On a very narrow one each value has its own line. `room`: columns; 0: no limit.
std::vector<std::string> difference_table(const std::vector<std::string>& names,
                                          const std::vector<report::SpecDifference>& fields, int room);

}  // namespace trainctl::terminal
