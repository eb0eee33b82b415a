// The patterns by which well-known byte-level tokenizers divide text into pieces, as scanners by hand: the
// same pieces as the regular expressions give (data/regex.h), several times as fast. Text of broken UTF-8
// is divided as if every broken byte was a U+FFFD.
#pragma once
#include <optional>
#include <string_view>

#include "data/character_classes.h"
#include "data/utf8.h"

namespace trainctl::data {

/// gpt2: GPT-2 and the ByteLevel of Hugging Face; cl100k: GPT-4 and Llama 3, up to three digits a piece;
/// qwen2: one digit a piece.
enum class KnownPattern { gpt2, cl100k, qwen2 };
/// The regular expression, as Oniguruma reads it.
std::string_view regex_of(KnownPattern pattern);
/// The pattern that is written like this; nullopt: another one.
std::optional<KnownPattern> known_pattern(std::string_view regex);

/// Cuts one piece after the other from a text.
template <KnownPattern kPattern>
class PieceScanner {
 public:
  explicit PieceScanner(std::string_view text)
      : classes_(character_classes()), at_(text.data()), end_(text.data() + text.size()) {}

  bool done() const { return at_ == end_; }
  /// The next piece, which is not empty; not at the end.
  std::string_view next() {
    const char* begin = at_;
    at_ = kPattern == KnownPattern::gpt2 ? gpt2_end(begin) : cl100k_end(begin);
    return {begin, size_t(at_ - begin)};
  }

 private:
  using Class = CharacterClass;
  struct Character {
    Class kind;
    uint32_t length;
  };

  Character at(const char* p) const {
    const CodePoint c = code_point_at({p, size_t(end_ - p)});
    return {classes_[c.value], c.length};
  }
  /// The end of a run of `kind` that begins at `p`.
  const char* run_end(const char* p, Class kind) const {
    while (p < end_) {
      const Character c = at(p);
      if (c.kind != kind) break;
      p += c.length;
    }
    return p;
  }

  /// `'s` and the like at `p`; 0: none. Source: (?i:'s|'t|'re|'ve|'m|'ll|'d); U+017F is an s without case.
  size_t contraction(const char* p) const {
    if (*p != '\'' || end_ - p < 2) return 0;
    constexpr bool kAnyCase = kPattern != KnownPattern::gpt2;
    const auto letter = [&](int i) { return kAnyCase ? char(p[i] | 0x20) : p[i]; };
    const char first = letter(1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (end_ - p < 3) return 0;
    if (kAnyCase && p[1] == '\xc5' && p[2] == '\xbf') return 3;
    if ((first == 'r' || first == 'v') && letter(2) == 'e') return 3;
    return first == 'l' && letter(2) == 'l' ? 3 : 0;
  }

  /// The end of white space that begins at `p`: `\s*[\r\n]+|\s+(?!\S)|\s+`, without the first part for gpt2.
  const char* white_space_end(const char* p) const {
    const char *begin = p, *last = p, *after_newline = nullptr;
    while (p < end_) {
      const Character c = at(p);
      if (c.kind != Class::space && c.kind != Class::newline) break;
      last = p;
      p += c.length;
      if (c.kind == Class::newline) after_newline = p;
    }
    if (kPattern != KnownPattern::gpt2 && after_newline != nullptr) return after_newline;
    return p == end_ || last == begin ? p : last;
  }

  const char* gpt2_end(const char* p) const {
    if (const size_t n = contraction(p)) return p + n;
    const char* q = p + (*p == ' ');
    if (q < end_) {
      const Character c = at(q);
      if (c.kind == Class::letter || c.kind == Class::number || c.kind == Class::other)
        return run_end(q + c.length, c.kind);
    }
    return white_space_end(p);
  }

  const char* cl100k_end(const char* p) const {
    if (const size_t n = contraction(p)) return p + n;
    const Character c = at(p);
    const char* q = p + c.length;
    if (c.kind == Class::letter) return run_end(q, Class::letter);
    if (c.kind == Class::number) {
      for (int digits = kPattern == KnownPattern::qwen2 ? 1 : 3; --digits > 0 && q < end_;) {
        const Character next = at(q);
        if (next.kind != Class::number) break;
        q += next.length;
      }
      return q;
    }
    if (c.kind != Class::newline && q < end_) {
      const Character next = at(q);
      if (next.kind == Class::letter) return run_end(q + next.length, Class::letter);
      if (*p == ' ' && next.kind == Class::other) return marks_end(q + next.length);
    }
    return c.kind == Class::other ? marks_end(q) : white_space_end(p);
  }
  /// The end of `[^\s\p{L}\p{N}]*[\r\n]*`.
  const char* marks_end(const char* p) const { return run_end(run_end(p, Class::other), Class::newline); }

  const CharacterClasses& classes_;
  const char *at_, *end_;
};

/// Calls on_piece(std::string_view) for each piece of the text.
template <KnownPattern kPattern, class OnPiece>
void scan(std::string_view text, const OnPiece& on_piece) {
  for (PieceScanner<kPattern> scanner(text); !scanner.done();) on_piece(scanner.next());
}
template <class OnPiece>
void scan(KnownPattern pattern, std::string_view text, const OnPiece& on_piece) {
  switch (pattern) {
    case KnownPattern::gpt2: return scan<KnownPattern::gpt2>(text, on_piece);
    case KnownPattern::cl100k: return scan<KnownPattern::cl100k>(text, on_piece);
    case KnownPattern::qwen2: return scan<KnownPattern::qwen2>(text, on_piece);
  }
}

}  // namespace trainctl::data
