#include "data/known_patterns.h"

namespace trainctl::data {

std::string_view regex_of(KnownPattern pattern) {
  switch (pattern) {
    case KnownPattern::gpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case KnownPattern::cl100k:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownPattern::qwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  return "";
}

std::optional<KnownPattern> known_pattern(std::string_view regex) {
  for (const KnownPattern pattern : {KnownPattern::gpt2, KnownPattern::cl100k, KnownPattern::qwen2})
    if (regex == regex_of(pattern)) return pattern;
  return std::nullopt;
}

}  // namespace trainctl::data
