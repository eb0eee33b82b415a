// With CLD2; the absent twin is data/clean/no_language.cpp.
#include <cld2/public/compact_lang_det.h>
#include <cld2/public/encodings.h>

#include "data/clean/language.h"
#include "data/utf8.h"
#include "runtime/base/error.h"

namespace trainctl::data {

bool has_language_detector() { return true; }

std::vector<LanguageShare> languages_of(std::string_view text) {
  constexpr size_t kMost = size_t(64) << 10;
  if (text.size() > kMost) {
    size_t end = kMost;
    while (end > 0 && (uint8_t(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
    text = text.substr(0, end);
  }
  // CLD2 reads as far as the text is UTF-8; a broken byte becomes a space.
  std::string repaired;
  for (size_t i = 0; i < text.size();) {
    const size_t n = character_length(text.substr(i));
    if (n == 0 && repaired.empty()) repaired = text;
    if (n == 0) repaired[i] = ' ';
    i += n == 0 ? 1 : n;
  }
  if (!repaired.empty()) text = repaired;
  CLD2::CLDHints hints{nullptr, nullptr, CLD2::UNKNOWN_ENCODING, CLD2::UNKNOWN_LANGUAGE};
  CLD2::Language languages[3];
  int percents[3] = {}, text_bytes = 0, valid_bytes = 0;
  double scores[3] = {};
  bool is_reliable = false;
  CLD2::ExtDetectLanguageSummaryCheckUTF8(text.data(), int(text.size()), true, &hints, 0, languages, percents,
                                          scores, nullptr, &text_bytes, &is_reliable, &valid_bytes);
  std::vector<LanguageShare> found;
  for (int i = 0; i < 3; ++i)
    if (languages[i] != CLD2::UNKNOWN_LANGUAGE && percents[i] > 0)
      found.push_back({CLD2::LanguageCode(languages[i]), percents[i] / 100.0});
  return found;
}

void check_language(const std::string& code) {
  for (int i = 0; i < CLD2::NUM_LANGUAGES; ++i)
    if (CLD2::Language(i) != CLD2::UNKNOWN_LANGUAGE && code == CLD2::LanguageCode(CLD2::Language(i))) return;
  throw Error(ErrorCode::kUsage,
              fmt::format("CLD2 has no language `{}`; write a code such as en, de or zh-Hant", code));
}

}  // namespace trainctl::data
