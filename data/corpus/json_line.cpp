#include "data/corpus/json_line.h"

#include <cstring>
#include <vector>

#include "data/utf8.h"

namespace trainctl::data {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;

uint64_t eight_bytes(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
/// Has a high bit set in a byte that is zero, and in no byte below the lowest one that is.
uint64_t zero_bytes(uint64_t word) { return (word - kOnes) & ~word & kHighs; }

/// Reads one value after the other from the front of a text. After a mistake it is at the end and `ok` is
/// false.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool ok() const { return ok_; }
  bool at_end() {
    skip_space();
    return at_ == end_;
  }
  /// The next character that is not white space; 0 at the end.
  char peek() {
    skip_space();
    return at_ < end_ ? *at_ : '\0';
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void need(char wanted) {
    if (!take(wanted)) fail();
  }

  /// A string. Its characters go to `out`, unless that is null.
  void string(std::string* out) {
    need('"');
    if (out != nullptr) out->clear();
    while (ok_) {
      const char* const begin = at_;
      at_ = plain_end(at_);
      if (out != nullptr) out->append(begin, size_t(at_ - begin));
      if (at_ == end_ || uint8_t(*at_) < 0x20) return fail();
      if (*at_++ == '"') return;
      escape(out);
    }
  }

  /// A list of strings and nulls: the strings, joined by newlines, go to `out`. False if it holds other
  /// values, which are checked.
  bool strings(std::string& out) {
    out.clear();
    need('[');
    bool only_strings = true, is_first = true;
    std::string element;
    for (bool more = ok_ && !take(']'); more && ok_;) {
      const char kind = peek();
      if (kind == '"') {
        string(&element);
        out += (is_first ? "" : "\n") + element;
        is_first = false;
      } else {
        only_strings = only_strings && kind == 'n';
        value();
      }
      more = take(',');
      if (!more) need(']');
    }
    return only_strings;
  }

  /// A value of any kind, which is checked and dropped.
  void value() {
    std::vector<char> open;  // the brackets that this value is in
    while (ok_) {
      bool complete = true;
      switch (peek()) {
        case '"': string(nullptr); break;
        case '{':
        case '[':
          open.push_back(*at_++);
          complete = take(closing(open.back()));
          if (complete)
            open.pop_back();
          else if (open.back() == '{')
            member_name();
          if (open.size() > kDeepest) fail();
          break;
        case 't': word("true"); break;
        case 'f': word("false"); break;
        case 'n': word("null"); break;
        default: number();
      }
      if (!complete) continue;
      while (ok_ && !open.empty() && take(closing(open.back()))) open.pop_back();
      if (!ok_ || open.empty()) return;
      need(',');
      if (open.back() == '{') member_name();
    }
  }

 private:
  static constexpr size_t kDeepest = 1000;
  static char closing(char bracket) { return bracket == '{' ? '}' : ']'; }

  void fail() {
    ok_ = false;
    at_ = end_;
  }
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  void member_name() {
    string(nullptr);
    need(':');
  }
  void word(std::string_view wanted) {
    if (size_t(end_ - at_) < wanted.size() || std::string_view(at_, wanted.size()) != wanted) return fail();
    at_ += wanted.size();
  }
  bool digits() {
    const char* const begin = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ > begin;
  }
  bool here(char wanted) const { return at_ < end_ && *at_ == wanted; }
  void number() {
    if (here('-')) ++at_;
    if (here('0'))
      ++at_;
    else if (!digits())
      return fail();
    if (here('.')) {
      ++at_;
      if (!digits()) return fail();
    }
    if (here('e') || here('E')) {
      ++at_;
      if (here('+') || here('-')) ++at_;
      if (!digits()) fail();
    }
  }

  /// The end of the run of characters that stand for themselves in a string.
  const char* plain_end(const char* p) const {
    while (end_ - p >= 8) {
      const uint64_t word = eight_bytes(p);
      const uint64_t control = (word - kOnes * 0x20) & ~word & kHighs;
      const uint64_t stops = control | zero_bytes(word ^ kOnes * '"') | zero_bytes(word ^ kOnes * '\\');
      if (stops != 0) return p + __builtin_ctzll(stops) / 8;
      p += 8;
    }
    while (p < end_ && *p != '"' && *p != '\\' && uint8_t(*p) >= 0x20) ++p;
    return p;
  }

  void escape(std::string* out) {
    if (at_ == end_) return fail();
    const char c = *at_++;
    if (c == 'u') return unicode_escape(out);
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const size_t i = kNames.find(c);
    if (i == kNames.npos) return fail();
    if (out != nullptr) *out += kMeant[i];
  }
  uint32_t hex4() {
    uint32_t value = 0;
    if (end_ - at_ < 4) fail();
    for (int i = 0; i < 4 && ok_; ++i) {
      const char c = *at_++;
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail();
      value = value << 4 | uint32_t(digit & 15);
    }
    return value;
  }
  void unicode_escape(std::string* out) {
    uint32_t value = hex4();
    if (value >= 0xd800 && value < 0xe000) {  // the first half of a pair, whose second half must follow
      if (value >= 0xdc00 || end_ - at_ < 6 || at_[0] != '\\' || at_[1] != 'u') return fail();
      at_ += 2;
      const uint32_t low = hex4();
      if (low < 0xdc00 || low >= 0xe000) return fail();
      value = 0x10000 + ((value - 0xd800) << 10 | (low - 0xdc00));
    }
    if (ok_ && out != nullptr) append_utf8(*out, value);
  }

  const char *at_, *end_;
  bool ok_ = true;
};

}  // namespace

bool is_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (text.size() - at >= 8 && (eight_bytes(text.data() + at) & kHighs) == 0) {
      at += 8;
      continue;
    }
    const size_t n = character_length(text.substr(at));
    if (n == 0) return false;
    at += n;
  }
  return true;
}

LineText find_json_text(std::string_view line, std::string_view key, std::string& text) {
  if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  if (!is_utf8(line)) return LineText::no_object;
  Scanner scanner(line);
  LineText result = LineText::no_string;
  std::string name;
  scanner.need('{');
  bool more = scanner.ok() && !scanner.take('}');
  while (more && scanner.ok()) {
    scanner.string(&name);
    scanner.need(':');
    if (name != key) {
      scanner.value();
    } else if (scanner.peek() == '"') {
      scanner.string(&text);
      result = LineText::found;
    } else if (scanner.peek() == '[') {
      result = scanner.strings(text) ? LineText::found : LineText::no_string;
    } else {
      scanner.value();
      result = LineText::no_string;
    }
    more = scanner.take(',');
    if (!more) scanner.need('}');
  }
  if (!scanner.ok() || !scanner.at_end()) return LineText::no_object;
  return result;
}

}  // namespace trainctl::data
