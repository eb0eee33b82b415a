// The words of a text as hashes: what near-duplicates are compared by.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "data/character_classes.h"
#include "data/normalize.h"
#include "data/utf8.h"

namespace trainctl::data {

/// Mixes all bits (the finaliser of MurmurHash3, by Austin Appleby, public domain).
inline uint64_t mixed_bits(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
  return x ^ x >> 33;
}

/// Whether a character is a word of its own: those of scripts that put no spaces between words (Thai, Lao,
/// Myanmar, Khmer, Kana, Han). Otherwise a page without spaces would be one word.
inline bool is_word_alone(uint32_t c) {
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {{0x0e00, 0x0eff}, {0x1000, 0x109f},  {0x1780, 0x17ff},
                                                       {0x3040, 0x30ff}, {0x3400, 0x9fff},  {0xf900, 0xfaff},
                                                       {0xff66, 0xff9f}, {0x20000, 0x3ffff}};
  for (const auto& [first, last] : kRanges)
    if (c >= first && c <= last) return true;
  return false;
}

/// A letter in small form, as far as it has one of one character (utf8proc).
uint32_t folded_letter(uint32_t c);

/// Whether a character belongs to the one before it: vowel signs, accents (Unicode's categories Mn, Mc, Me).
bool is_mark(uint32_t c);

/// Calls `word` with a 64-bit hash of each word, in order. A word is a run of letters, the marks that follow
/// them, and numbers (Unicode's categories L, M and N), in small letters and form C; everything else
/// separates words and does not count.
template <class Word>
void scan_words(std::string_view raw_text, const Word& word) {
  std::string composed;
  const std::string_view text = normalize_c(raw_text, composed);
  constexpr uint64_t kStart = 0x9e3779b97f4a7c15, kFactor = 0xd6e8feb86659fd93;
  static constexpr auto kSmall = [] {  // 0: no part of a word
    std::array<uint8_t, 128> small{};
    for (int c = '0'; c <= '9'; ++c) small[size_t(c)] = uint8_t(c);
    for (int c = 'a'; c <= 'z'; ++c) small[size_t(c)] = small[size_t(c - 'a' + 'A')] = uint8_t(c);
    return small;
  }();
  const CharacterClasses& classes = character_classes();
  uint64_t hash = kStart;
  const auto end_word = [&] {
    if (hash != kStart) word(mixed_bits(hash));
    hash = kStart;
  };
  for (size_t i = 0; i < text.size();) {
    const auto c = uint8_t(text[i]);
    if (c < 0x80) {
      ++i;
      if (kSmall[c] != 0)
        hash = (hash ^ kSmall[c]) * kFactor;
      else if (hash != kStart)
        end_word();
      continue;
    }
    const CodePoint point = code_point_at(text.substr(i));
    i += point.length;
    const bool alone = is_word_alone(point.value);
    const CharacterClass kind = classes[point.value];
    const bool counts = alone || kind == CharacterClass::letter || kind == CharacterClass::number;
    if (!counts && hash != kStart && is_mark(point.value)) {
      hash = (hash ^ point.value) * kFactor;
      continue;
    }
    if (alone || !counts) end_word();
    if (counts) hash = (hash ^ folded_letter(point.value)) * kFactor;
    if (alone) end_word();
  }
  end_word();
}

}  // namespace trainctl::data
