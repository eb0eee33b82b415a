// The page of each diagnostic code: its meaning, its cause, an example, and what to do. Pure.
#pragma once
#include <string>
#include <vector>

namespace trainctl::spec {

struct CodePage {
  std::string code, title, cause, example, fix;
};

/// All pages in the order of the codes. E01xx syntax, E02xx values, E03xx parallelism, E04xx size, E05xx
/// data, E06xx checkpoints and runs, E07xx launching, W warnings.
const std::vector<CodePage>& code_pages();
const std::vector<CodePage>& number_pages();  ///< a part of them: number formats, fields without effect
const std::vector<CodePage>& watch_pages();  ///< a part of them: loss monitor and alerts
const CodePage* find_code(const std::string& code);

}  // namespace trainctl::spec
