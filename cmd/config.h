// The effective values of a spec with their origins, as `config` and `validate --show-origin` print them.
#pragma once
#include <vector>

#include "runtime/observe/report/spec_rows.h"
#include "runtime/spec/parse.h"

namespace trainctl::cmd {

/// One row for each field. A value that `auto` stands for is shown behind it: "auto = 4".
std::vector<report::SpecRow> rows_of(const ParsedJob& job);
void print_rows(const std::vector<report::SpecRow>& rows, bool with_origin);

}  // namespace trainctl::cmd
