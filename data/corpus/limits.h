// The message about a record that is too long.
#pragma once
#include <string>

#include "data/corpus/document.h"
#include "runtime/base/units.h"

namespace trainctl::data {

/// `bytes`: its length, or as much of it as was read.
inline std::string too_long(uint64_t bytes, const CorpusOptions& options) {
  return "longer than " + size_text(options.longest_document) + " (" + size_text(bytes) +
         " or more); raise --longest-document, or leave it out with --skip-bad";
}

}  // namespace trainctl::data
