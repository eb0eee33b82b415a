#include "data/utf8.h"

namespace trainctl::data {

size_t character_length(std::string_view s) {
  const auto at = [&](size_t i) { return i < s.size() ? uint8_t(s[i]) : uint8_t(0); };
  const auto tail = [&](size_t i) { return (at(i) & 0xc0) == 0x80; };
  const uint8_t c = at(0);
  if (c < 0x80) return 1;
  if (c >= 0xc2 && c <= 0xdf) return tail(1) ? 2 : 0;
  if (c >= 0xe0 && c <= 0xef) {
    const bool ok = tail(1) && tail(2) && !(c == 0xe0 && at(1) < 0xa0) && !(c == 0xed && at(1) >= 0xa0);
    return ok ? 3 : 0;
  }
  if (c >= 0xf0 && c <= 0xf4) {
    const bool ok =
        tail(1) && tail(2) && tail(3) && !(c == 0xf0 && at(1) < 0x90) && !(c == 0xf4 && at(1) >= 0x90);
    return ok ? 4 : 0;
  }
  return 0;
}

CodePoint decode_long(std::string_view text) {
  const auto bits = [&](size_t i) { return uint32_t(uint8_t(text[i]) & 0x3f); };
  const uint32_t first = uint8_t(text[0]);
  switch (character_length(text)) {
    case 1: return {first, 1};
    case 2: return {(first & 0x1f) << 6 | bits(1), 2};
    case 3: return {(first & 0x0f) << 12 | bits(1) << 6 | bits(2), 3};
    case 4: return {(first & 0x07) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3), 4};
    default: return {kReplacement, 1};
  }
}

void append_utf8(std::string& text, uint32_t c) {
  const auto tail = [&](int shift) { text += char(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) {
    text += char(c);
  } else if (c < 0x800) {
    text += char(0xc0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    text += char(0xe0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    text += char(0xf0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace trainctl::data
