#include "data/clean/word_scanner.h"

#include <utf8proc.h>

namespace trainctl::data {

uint32_t folded_letter(uint32_t c) { return uint32_t(utf8proc_tolower(utf8proc_int32_t(c))); }

}  // namespace trainctl::data
