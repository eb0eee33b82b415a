// Unicode's normalisation form C, which some tokenizers apply to text first.
#pragma once
#include <string>
#include <string_view>

namespace trainctl::data {

/// The text in form C: `text` itself where it is so already, otherwise a view of `buffer`. Broken UTF-8
/// stays as it is. Tables: utf8proc.
std::string_view normalize_c(std::string_view text, std::string& buffer);

}  // namespace trainctl::data
