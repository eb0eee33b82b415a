// The fields in which two specs differ, as a table for a terminal of any width. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/observe/report/spec_rows.h"

namespace trainctl::terminal {

/// A header and a line for each field: its value in `a` and in `b`, each with its origin, cut where the terminal
/// is narrow. On a very narrow one each field has three lines. `room`: columns; 0: no limit.
std::vector<std::string> difference_table(const std::string& a, const std::string& b,
                                          const std::vector<report::SpecDifference>& fields, int room);

}  // namespace trainctl::terminal
