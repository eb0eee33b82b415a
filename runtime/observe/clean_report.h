// The output of `trainctl data dedup`, `data filter` and `data mix` as text or JSON: what was removed and
// why, and what a run draws.
#pragma once
#include <string>

#include "data/clean/dedup.h"
#include "data/clean/filter.h"
#include "data/mix.h"

namespace trainctl {

/// As text: one paragraph, and the next command as the last line. As JSON: one object on one line.
std::string render_cleaning(const data::CleaningResult& result, bool json);

/// As text: a table, and a warning for each source that is drawn more than four times. As JSON: one object on
/// one line.
std::string render_mix(const data::Mix& mix, bool json);

}  // namespace trainctl
