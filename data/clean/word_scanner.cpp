#include "data/clean/word_scanner.h"

#include <utf8proc.h>

namespace trainctl::data {

uint32_t folded_letter(uint32_t c) { return uint32_t(utf8proc_tolower(utf8proc_int32_t(c))); }

bool is_mark(uint32_t c) {
  const utf8proc_category_t category = utf8proc_category(utf8proc_int32_t(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

}  // namespace trainctl::data
