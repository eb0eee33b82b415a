#include "data/byte_level.h"

#include <array>
#include <cstdint>

#include "data/utf8.h"

namespace trainctl::data {
namespace {

constexpr uint32_t kBytes = 256, kCharacters = 0x144;  // the last stands for byte 0xad

struct Alphabet {
  std::array<std::string, kBytes> characters;
  std::array<int, kCharacters> bytes;  // by code point; -1: none

  Alphabet() {
    bytes.fill(-1);
    const auto is_plain = [](uint32_t b) {
      return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    };
    uint32_t next = kBytes;
    for (uint32_t b = 0; b < kBytes; ++b) {
      const uint32_t code = is_plain(b) ? b : next++;
      append_utf8(characters[b], code);
      bytes[code] = int(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

const std::string& character_of_byte(uint8_t byte) { return alphabet().characters[byte]; }

std::string characters_of_bytes(std::string_view bytes) {
  std::string characters;
  for (const char b : bytes) characters += character_of_byte(uint8_t(b));
  return characters;
}

std::optional<std::string> bytes_of_characters(std::string_view characters) {
  std::string bytes;
  while (!characters.empty()) {
    const CodePoint c = code_point_at(characters);
    if (c.value >= kCharacters || alphabet().bytes[c.value] < 0) return std::nullopt;
    bytes += char(alphabet().bytes[c.value]);
    characters.remove_prefix(c.length);
  }
  return bytes;
}

}  // namespace trainctl::data
