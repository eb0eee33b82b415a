// The output of `trainctl data dedup` and `data filter` as text or JSON: what was removed and why.
#pragma once
#include <string>

#include "data/clean/dedup.h"

namespace trainctl {

/// As text: one paragraph, and the next command as the last line. As JSON: one object on one line.
std::string render_cleaning(const data::CleaningResult& result, bool json);

}  // namespace trainctl
