// Oniguruma's patterns for PCRE2. The known set is what tokenizer files use; everything else is refused,
// because a construct that the two libraries read differently would give other token ids without a word.
#include <algorithm>

#include "data/character_classes.h"
#include "data/regex.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr std::string_view kCategories[] = {"L",  "Ll", "Lu", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                            "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                            "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                            "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co"};
constexpr std::string_view kScripts[] = {"Han",   "Hiragana", "Katakana", "Hangul", "Latin",
                                         "Greek", "Cyrillic", "Arabic",   "Hebrew", "Thai"};

std::string ranges_text(std::span<const CodePoints> ranges) {
  std::string text;
  for (const auto [first, last] : ranges)
    text += first == last ? fmt::format("\\x{{{:x}}}", first)
                          : fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", first, last);
  return text;
}

/// The new characters of a category or of a group of categories ("L"). Named one by one they count even
/// where PCRE2 does not know them; if a class lacked them that another has, a pattern could leave text
/// between its matches.
std::string additions(std::string_view property) {
  std::vector<CodePoints> ranges;
  for (const auto& [first, last, category] : new_characters())
    if (category.substr(0, property.size()) == property) ranges.push_back({first, last});
  return ranges_text(ranges);
}

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        bracket();
      } else if (c == '(') {
        group();
      } else if (c == '^' || c == '$') {
        refuse(std::string(1, c));
      } else if (c == '?' || c == '*' || c == '+') {
        ++at_;
        out_ += c;
        if (at_ < pattern_.size() && (pattern_[at_] == '?' || pattern_[at_] == '+')) out_ += pattern_[at_++];
      } else if (c == '{') {
        interval();
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(
        ErrorCode::kData,
        fmt::format(
            "{}: trainctl does not know {} in the pattern {}; divide the text by classes such as \\s and "
            "\\p{{L}}, groups (?:...), (?i:...), (?!...) and repetitions",
            where_, what, pattern_));
  }
  bool follows(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }

  void group() {
    if (!follows("(?")) {
      ++at_;
      out_ += '(';
      return;
    }
    for (const std::string_view start : {"(?:", "(?i:", "(?!", "(?=", "(?<!", "(?<=", "(?>"})
      if (follows(start)) {
        if (start == "(?i:") check_folding();
        out_ += start;
        at_ += start.size();
        return;
      }
    refuse(std::string(pattern_.substr(at_, 4)));
  }

  /// Oniguruma matches "ss" without case also with one character, the German sharp s; PCRE2 does not.
  void check_folding() const {
    std::string lower(pattern_.substr(at_));
    for (char& c : lower) {
      if (uint8_t(c) >= 0x80) refuse("characters beyond ASCII after (?i:");
      if (c >= 'A' && c <= 'Z') c = char(c + 32);
    }
    const std::string_view inside = std::string_view(lower).substr(0, lower.find(')'));
    for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"})
      if (inside.find(pair) != inside.npos) refuse(fmt::format("{} after (?i:", pair));
  }

  void interval() {
    const size_t close = pattern_.find('}', at_);
    const std::string_view inside =
        pattern_.substr(at_ + 1, close == pattern_.npos ? close : close - at_ - 1);
    const size_t comma = inside.find(',');
    const auto is_number = [](std::string_view text) {
      return !text.empty() && text.size() <= 4 &&
             std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    const bool good =
        close != pattern_.npos && is_number(inside.substr(0, comma)) &&
        (comma == inside.npos || comma + 1 == inside.size() || is_number(inside.substr(comma + 1)));
    const char next = good && close + 1 < pattern_.size() ? pattern_[close + 1] : ' ';
    if (!good || next == '+' || next == '?') refuse(fmt::format("the repetition {{{}}}{}", inside, next));
    out_ += pattern_.substr(at_, close + 1 - at_);
    at_ = close + 1;
  }

  void bracket() {
    out_ += '[';
    if (++at_ < pattern_.size() && pattern_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    if (follows("]")) refuse("an empty []");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') refuse(follows("[:") ? "a [:name:] inside []" : "a [] inside []");
      if (follows("&&")) refuse("&& inside []");
      if (pattern_[at_] == '\\') {
        escape(true);
      } else {
        out_ += pattern_[at_++];
      }
    }
    if (at_ == pattern_.size()) refuse("a [ without its ]");
    out_ += ']';
    ++at_;
  }

  /// Writes a class: inside brackets its ranges, otherwise brackets of its own.
  void put_class(const std::string& content, bool negated, bool in_bracket) {
    if (in_bracket && negated) refuse(fmt::format("\\S or \\P{{...}} inside []"));
    out_ += in_bracket ? content : fmt::format("[{}{}]", negated ? "^" : "", content);
  }

  void escape(bool in_bracket) {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (c == 'p' || c == 'P') return property(in_bracket);
    if (c == 'u') return code_point();
    at_ += 2;
    if (c == 's' || c == 'S') return put_class(ranges_text(white_space()), c == 'S', in_bracket);
    const bool is_mark = c > ' ' && c < 0x7f && !isalnum(static_cast<unsigned char>(c));
    if (is_mark || c == ' ' || c == 'r' || c == 'n' || c == 't' || c == 'd') {
      out_ += '\\';
      out_ += c;
      return;
    }
    at_ -= 2;
    refuse(std::string(pattern_.substr(at_, 2)));
  }

  /// \uHHHH
  void code_point() {
    const std::string_view digits = pattern_.substr(std::min(at_ + 2, pattern_.size()), 4);
    const bool good = digits.size() == 4 && std::all_of(digits.begin(), digits.end(), [](char c) {
                        return isxdigit(static_cast<unsigned char>(c)) != 0;
                      });
    if (!good) refuse(std::string(pattern_.substr(at_, 6)));
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  void property(bool in_bracket) {
    const size_t close = pattern_.find('}', at_);
    const bool has_name = at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{' && close != pattern_.npos;
    if (!has_name) refuse(std::string(pattern_.substr(at_, 3)));
    const std::string name(pattern_.substr(at_ + 3, close - at_ - 3));
    const bool negated = pattern_[at_ + 1] == 'P';
    if (std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories)) {
      put_class(fmt::format("\\p{{{}}}{}", name, additions(name)), negated, in_bracket);
    } else if (std::find(std::begin(kScripts), std::end(kScripts), name) != std::end(kScripts)) {
      put_class(fmt::format("\\p{{sc:{}}}", name), negated, in_bracket);
    } else {
      refuse(fmt::format("\\p{{{}}}", name));
    }
    at_ = close + 1;
  }

  const std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre_of_oniguruma(std::string_view pattern, const std::string& where) {
  return Translation(pattern, where).run();
}

}  // namespace trainctl::data
