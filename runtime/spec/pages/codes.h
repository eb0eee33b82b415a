// Every diagnostic's page: what the code means, why it happens, an example, and what to do. Pure.
#pragma once
#include <string>
#include <vector>

namespace trainctl::spec {

struct CodePage {
  std::string code, title, cause, example, fix;
};

/// In order of the codes. E01xx syntax, E02xx values, E03xx parallelism, E05xx data, E06xx checkpoints and
/// runs, E07xx launching, W: warnings.
const std::vector<CodePage>& code_pages();
const CodePage* find_code(const std::string& code);

}  // namespace trainctl::spec
