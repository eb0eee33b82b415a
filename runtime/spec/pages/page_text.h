// How texts are set on the pages about fields and in starter specs. Pure.
#pragma once
#include <cstdint>
#include <string>

namespace trainctl::spec {

/// Breaks `text` into lines that start with `indent`.
std::string wrapped(const std::string& text, const std::string& indent);
std::string first_sentence(const std::string& text);
/// 124439808 -> "124 439 808".
std::string grouped(int64_t number);

}  // namespace trainctl::spec
