// UTF-8, as tokenizers read it: a byte that belongs to no character counts as one U+FFFD.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainctl::data {

/// Length of the UTF-8 character at the start of `text`; 0 if there is none (RFC 3629: no surrogates, no
/// overlong forms).
size_t character_length(std::string_view text);

struct CodePoint {
  uint32_t value, length;  ///< length: bytes
};
inline constexpr uint32_t kReplacement = 0xfffd;

CodePoint decode_long(std::string_view text);
/// The code point at the start of `text`, which is not empty; a broken byte is {kReplacement, 1}.
inline CodePoint code_point_at(std::string_view text) {
  const auto first = uint8_t(text.front());
  return first < 0x80 ? CodePoint{first, 1} : decode_long(text);
}

void append_utf8(std::string& text, uint32_t code_point);

}  // namespace trainctl::data
