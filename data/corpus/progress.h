// CorpusProgress: how far the reading of a corpus is, for a line of progress.
#pragma once
#include <cstdint>

namespace trainctl::data {

struct CorpusProgress {
  const char* doing = "";
  uint64_t stored_bytes = 0, stored_total = 0;  ///< of the input files
  uint64_t text_bytes = 0;                      ///< unpacked
};

}  // namespace trainctl::data
