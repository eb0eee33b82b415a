// The language of a text, by CLD2 (Compact Language Detector 2).
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::data {

struct LanguageShare {
  std::string code;  ///< "en", "zh-Hant": as CLD2 writes it
  double share = 0;  ///< of the text, 0 to 1
};

/// Whether this program was built with CLD2.
bool has_language_detector();
/// The at most three languages of a text (of its first 64 KiB), the largest share first; parts of unknown
/// language are left out. Any thread. Error(kUsage) without CLD2.
std::vector<LanguageShare> languages_of(std::string_view text);
/// Error(kUsage), one sentence: it is no code that CLD2 has, or there is no CLD2.
void check_language(const std::string& code);

}  // namespace trainctl::data
