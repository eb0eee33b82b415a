// The classes of characters that the patterns of byte-level tokenizers distinguish, as of Unicode 16.0.
// They are part of this program, so that token ids do not depend on the Unicode version of a library.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace trainctl::data {

/// other: neither a letter, nor a number, nor white space. newline: \r and \n; they are white space, too.
enum class CharacterClass : uint8_t { other, letter, number, space, newline };

using CharacterClasses = std::array<CharacterClass, 0x110000>;  ///< by code point
/// letter: general categories L*; number: N*; space: the property White_Space. Made on the first call.
const CharacterClasses& character_classes();

/// First to last.
struct CodePoints {
  uint32_t first, last;
};
std::span<const CodePoints> white_space();  ///< with \r and \n

/// Characters that got their general category (such as "Lu") after Unicode 14.0: older libraries do not
/// know them.
struct NewCharacters {
  uint32_t first, last;
  std::string_view category;
};
std::span<const NewCharacters> new_characters();

}  // namespace trainctl::data
