#include "runtime/spec/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

namespace trainctl::json {

namespace {

constexpr int kMaxDepth = 64;
constexpr int kMostMistakes = 10;  // beyond these a text is rather no spec at all

/// Thrown inside the reader only, where nothing after a syntax mistake can be trusted.
struct SyntaxMistake {};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Reader {
 public:
  Reader(std::string_view text, int source, std::vector<Problem>& problems)
      : text_(text), source_(source), problems_(problems) {}

  Value document() {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") offset_ = line_start_ = 3;
    skip_blanks();
    Value value = read_value(0);
    skip_blanks();
    if (!at_end())
      fail(here(1), "there is more text after the end of the spec", "remove it, or check the braces above");
    return value;
  }

 private:
  bool at_end() const { return offset_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[offset_]; }

  Place here(int length) const {
    int column = 1;
    for (size_t i = line_start_; i < offset_ && i < text_.size(); ++i)
      if ((static_cast<unsigned char>(text_[i]) & 0xC0) != 0x80) ++column;
    return {.source = source_, .line = line_, .column = column, .length = length};
  }

  [[noreturn]] void fail(Place place, std::string message, std::string help = "") {
    problems_.push_back({"E0100", std::move(message), std::move(help), place});
    throw SyntaxMistake{};
  }

  /// A mistake after which it is clear how to read on.
  void note(Place place, std::string message, std::string help) {
    if (++mistakes_ > kMostMistakes) fail(place, "too many mistakes: reading stops here", "correct those above first");
    problems_.push_back({"E0100", std::move(message), std::move(help), place});
  }

  void skip_blanks() {
    while (!at_end()) {
      const char c = peek();
      if (c == '\n') {
        ++line_;
        line_start_ = ++offset_;
      } else if (c == ' ' || c == '\t' || c == '\r') {
        ++offset_;
      } else if (text_.substr(offset_, 2) == "//") {
        while (!at_end() && peek() != '\n') ++offset_;
      } else if (text_.substr(offset_, 2) == "/*") {
        note(here(2), "/* */ comments are not understood", "use // at the start of each line");
        const size_t end = std::min(text_.find("*/", offset_), text_.size());
        for (; offset_ < end; ++offset_)
          if (peek() == '\n') {
            ++line_;
            line_start_ = offset_ + 1;
          }
        offset_ = std::min(end + 2, text_.size());
      } else {
        return;
      }
    }
  }

  Value read_value(int depth) {
    if (depth > kMaxDepth) fail(here(1), fmt::format("nested deeper than {} levels", kMaxDepth));
    if (at_end())
      fail(here(1), "the text ends where a value should be", "check for a missing value or brace");
    const char c = peek();
    if (c == '{') return read_object(depth);
    if (c == '[') return read_list(depth);
    if (c == '"') {
      Value value;
      value.kind = Kind::text;
      value.place = here(1);
      const size_t begin = offset_;
      value.text = read_text();
      value.place.length = static_cast<int>(offset_ - begin);
      return value;
    }
    if (c == '-' || is_digit(c)) return read_number();
    return read_word();
  }

  /// true, false, null, and the words people write in their place.
  Value read_word() {
    Value value;
    size_t end = offset_;
    while (end < text_.size() && is_word(text_[end])) ++end;
    const std::string word(text_.substr(offset_, end - offset_));
    value.place = here(std::max<int>(1, static_cast<int>(word.size())));
    if (word.empty()) {
      if (peek() == '\'') {
        note(value.place, "text must be in double quotes", "write \"...\" instead of '...'");
        value.kind = Kind::text;
        value.text = read_text('\'');
        return value;
      }
      fail(value.place, fmt::format("`{}` cannot start a value", peek()),
           "a value is text, a number, true, false, null, [ ] or { }");
    }
    offset_ = end;
    if (word == "true" || word == "false") {
      value.kind = Kind::boolean;
      value.boolean = word == "true";
    } else if (word == "NaN" || word == "nan" || word == "Infinity" || word == "inf") {
      not_a_number(value.place, word);
    } else if (word != "null") {
      note(value.place, fmt::format("`{}` is not a value", word), fmt::format("text is in double quotes: \"{}\"", word));
    }
    return value;
  }

  void not_a_number(Place place, const std::string& word) {
    problems_.push_back({"E0103", fmt::format("`{}` is not a number a spec can hold", word),
                         "write a finite number, or null for the default", place});
  }

  Value read_number() {
    Value value;
    value.kind = Kind::number;
    value.place = here(1);
    const size_t begin = offset_;
    if (peek() == '-') ++offset_;
    if (text_.substr(offset_, 8) == "Infinity" || text_.substr(offset_, 3) == "inf") {
      while (is_word(peek())) ++offset_;
      value.place.length = static_cast<int>(offset_ - begin);
      value.kind = Kind::null;
      not_a_number(value.place, std::string(text_.substr(begin, offset_ - begin)));
      return value;
    }
    const bool leading_zero =
        peek() == '0' && is_digit(text_.size() > offset_ + 1 ? text_[offset_ + 1] : '\0');
    bool well_formed = is_digit(peek()) && !leading_zero;
    while (is_digit(peek())) ++offset_;
    if (peek() == '.') {
      ++offset_;
      well_formed = well_formed && is_digit(peek());
      while (is_digit(peek())) ++offset_;
    }
    if (peek() == 'e' || peek() == 'E') {
      ++offset_;
      if (peek() == '+' || peek() == '-') ++offset_;
      well_formed = well_formed && is_digit(peek());
      while (is_digit(peek())) ++offset_;
    }
    if (is_word(peek()) || peek() == '.') well_formed = false;
    while (is_word(peek()) || peek() == '.') ++offset_;
    value.text = std::string(text_.substr(begin, offset_ - begin));
    value.place.length = static_cast<int>(value.text.size());
    if (!well_formed)
      note(value.place, fmt::format("`{}` is not a JSON number", value.text),
           fmt::format("a quantity with a unit is in double quotes: \"{}\"", value.text));
    value.number = std::strtod(value.text.c_str(), nullptr);
    if (!std::isfinite(value.number)) {
      value.kind = Kind::null;
      not_a_number(value.place, value.text);
    }
    return value;
  }

  unsigned read_hex4() {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i, ++offset_) {
      const char c = peek();
      unsigned digit = 0;
      if (is_digit(c))
        digit = static_cast<unsigned>(c - '0');
      else if (c >= 'a' && c <= 'f')
        digit = static_cast<unsigned>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        digit = static_cast<unsigned>(c - 'A' + 10);
      else
        fail(here(1), "\\u needs four hexadecimal digits");
      code = code * 16 + digit;
    }
    return code;
  }

  void append_utf8(std::string& out, unsigned code) {
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    } else if (code < 0x10000) {
      out += {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
              static_cast<char>(0x80 | (code & 0x3F))};
    } else {
      out += {static_cast<char>(0xF0 | (code >> 18)), static_cast<char>(0x80 | ((code >> 12) & 0x3F)),
              static_cast<char>(0x80 | ((code >> 6) & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
    }
  }

  void read_escape(std::string& out) {
    const Place place = here(2);
    const char c = (++offset_, peek());
    ++offset_;
    switch (c) {
      case '"':
      case '\\':
      case '/': out += c; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      case 'n': out += '\n'; return;
      case 'r': out += '\r'; return;
      case 't': out += '\t'; return;
      case 'u': break;
      default: note(place, "unknown escape in a text", "a backslash itself is written \\\\"); return;
    }
    unsigned code = read_hex4();
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(offset_, 2) != "\\u") fail(place, "half of a surrogate pair in a text");
      offset_ += 2;
      const unsigned low = read_hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail(place, "half of a surrogate pair in a text");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      fail(place, "half of a surrogate pair in a text");
    }
    append_utf8(out, code);
  }

  std::string read_text(char quote = '"') {
    const Place begin = here(1);
    std::string out;
    ++offset_;
    while (true) {
      if (at_end() || peek() == '\n')
        fail(begin, "this text has no closing quote", "end it with \" on the same line");
      const char c = peek();
      if (c == quote) {
        ++offset_;
        return out;
      }
      if (c == '\\') {
        read_escape(out);
        continue;
      }
      if (static_cast<unsigned char>(c) < 0x20)
        note(here(1), "control character in a text", "write it as an escape such as \\t");
      out += c;
      ++offset_;
    }
  }

  Value read_list(int depth) {
    Value value;
    value.kind = Kind::list;
    value.place = here(1);
    ++offset_;
    skip_blanks();
    while (peek() != ']') {
      value.items.push_back(read_value(depth + 1));
      skip_blanks();
      if (!next_element(']', "list", value.place)) break;
    }
    ++offset_;
    return value;
  }

  /// Call after an element. Returns true if another element follows; otherwise the position is the closing
  /// bracket.
  bool next_element(char close, const char* what, Place opened) {
    if (at_end())
      fail(opened, fmt::format("this {} is never closed", what), fmt::format("add the missing {}", close));
    if (peek() == close) return false;
    if (peek() != ',') {
      const std::string message = fmt::format("expected `,` or `{}` here", close), help = "a comma separates entries";
      const bool next_starts = peek() == '"' || (close == ']' && (peek() == '{' || peek() == '[' || is_word(peek())));
      if (!next_starts) fail(here(1), message, help);
      note(here(1), message, help);
      return true;
    }
    const Place comma = here(1);
    ++offset_;
    skip_blanks();
    if (peek() == close) {
      note(comma, fmt::format("comma before `{}`", close), "remove this comma");
      return false;
    }
    if (at_end())
      fail(opened, fmt::format("this {} is never closed", what), fmt::format("add the missing {}", close));
    return true;
  }

  std::string read_key() {
    if (peek() == '"') return read_text();
    const bool quoted = peek() == '\'';
    if (peek() == ',') fail(here(1), "a comma without an entry before it", "remove it");
    if (!quoted && !is_word(peek())) fail(here(1), "a field's name must be in double quotes", "write \"name\": value");
    note(here(1), "a field's name must be in double quotes", "write \"name\": value");
    if (quoted) return read_text('\'');
    const size_t begin = offset_;
    while (is_word(peek())) ++offset_;
    return std::string(text_.substr(begin, offset_ - begin));
  }

  Value read_object(int depth) {
    Value value;
    value.kind = Kind::object;
    value.place = here(1);
    ++offset_;
    skip_blanks();
    while (peek() != '}') {
      if (at_end()) fail(value.place, "this object is never closed", "add the missing }");
      Member member;
      member.place = here(1);
      const size_t begin = offset_;
      member.key = read_key();
      member.place.length = static_cast<int>(offset_ - begin);
      skip_blanks();
      if (peek() != ':') fail(here(1), fmt::format("expected `:` after \"{}\"", member.key));
      ++offset_;
      skip_blanks();
      member.value = read_value(depth + 1);
      if (const Value* first = value.find(member.key)) {
        problems_.push_back({"E0102", fmt::format("`{}` is given twice", member.key),
                             fmt::format("the first is in line {}; keep one", first->place.line),
                             member.place});
      } else {
        value.members.push_back(std::move(member));
      }
      skip_blanks();
      if (!next_element('}', "object", value.place)) break;
    }
    ++offset_;
    return value;
  }

  std::string_view text_;
  int source_;
  std::vector<Problem>& problems_;
  size_t offset_ = 0, line_start_ = 0;
  int line_ = 1, mistakes_ = 0;
};

/// The text up to `offset` as a place.
Place place_of(std::string_view text, size_t offset, int source) {
  Place place{.source = source, .line = 1, .column = 1, .length = 1};
  for (const char c : text.substr(0, offset)) {
    if (c == '\n') {
      ++place.line;
      place.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++place.column;
    }
  }
  return place;
}

/// What is wrong with the bytes of a text before any of it is read; nothing if they are UTF-8.
std::optional<Problem> check_bytes(std::string_view text, int source) {
  const auto starts = [&](std::string_view mark) { return text.substr(0, mark.size()) == mark; };
  const bool marked = starts("\xFF\xFE") || starts("\xFE\xFF");
  const bool unmarked = text.size() >= 2 && (text[0] == '\0') != (text[1] == '\0');
  if (marked || unmarked)
    return Problem{"E0100", "the text is UTF-16, not UTF-8", "save the file as UTF-8", place_of(text, 0, source)};
  if (const size_t bad = first_not_utf8(text); bad != std::string_view::npos)
    return Problem{"E0100",
                   fmt::format("the text is not UTF-8: byte {} of it is 0x{:02x}", bad, static_cast<unsigned char>(text[bad])),
                   "save the file as UTF-8", place_of(text, bad, source)};
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return Problem{"E0100", fmt::format("byte {} of the text is a NUL", nul), "remove it; is this a text file?",
                   place_of(text, nul, source)};
  return std::nullopt;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::null: return "null";
    case Kind::boolean: return "true or false";
    case Kind::number: return "a number";
    case Kind::text: return "text";
    case Kind::list: return "a list";
    case Kind::object: return "an object";
  }
  return "?";
}

const Value* Value::find(std::string_view key) const {
  for (const Member& member : members)
    if (member.key == key) return &member.value;
  return nullptr;
}

Value* Value::find(std::string_view key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

size_t first_not_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[i]);
    const int length = lead < 0x80                   ? 1
                       : lead >= 0xC2 && lead < 0xE0 ? 2
                       : (lead & 0xF0) == 0xE0       ? 3
                       : lead >= 0xF0 && lead < 0xF5 ? 4
                                                     : 0;
    if (length == 0 || i + static_cast<size_t>(length) > text.size()) return i;
    unsigned code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
    for (int k = 1; k < length; ++k) {
      const unsigned char c = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      if ((c & 0xC0) != 0x80) return i;
      code = (code << 6) | (c & 0x3F);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return i;
    i += static_cast<size_t>(length);
  }
  return std::string_view::npos;
}

bool valid_utf8(std::string_view text) { return first_not_utf8(text) == std::string_view::npos; }

ReadResult read(std::string_view text, int source) {
  ReadResult result;
  if (std::optional<Problem> problem = check_bytes(text, source)) {
    result.problems.push_back(std::move(*problem));
    return result;
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    result.problems.push_back({"E0100",
                               text.empty() ? "the file is empty" : "the file has nothing but spaces",
                               "`trainctl init -o job.json` writes a starter", place_of(text, 0, source)});
    return result;
  }
  try {
    result.value = Reader(text, source, result.problems).document();
  } catch (const SyntaxMistake&) {
    // Already recorded.
  }
  return result;
}

void merge(Value& base, const Value& patch) {
  if (patch.kind != Kind::object) {
    base = patch;
    return;
  }
  if (base.kind != Kind::object) {
    base = Value{};
    base.kind = Kind::object;
    base.place = patch.place;
  }
  for (const Member& member : patch.members) {
    const auto old = std::find_if(base.members.begin(), base.members.end(),
                                  [&](const Member& m) { return m.key == member.key; });
    if (member.value.kind == Kind::null) {
      if (old != base.members.end()) base.members.erase(old);
    } else if (old != base.members.end()) {
      old->place = member.place;
      merge(old->value, member.value);
    } else {
      base.members.push_back(member);
    }
  }
}

}  // namespace trainctl::json
