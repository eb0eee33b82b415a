#include "data/normalize.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "data/utf8.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr uint32_t kCodePoints = 0x110000;
constexpr uint32_t kFirstUnstable = 0x300;  // no smaller character combines with those before it or changes

void append_normalized(std::string_view text, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), utf8proc_ssize_t(text.size()),
                              &mapped, utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owned(mapped, std::free);
  ENSURE(n >= 0, "{}: {} bytes", utf8proc_errmsg(n), text.size());
  out.append(reinterpret_cast<const char*>(mapped), size_t(n));
}

/// For each character: form C leaves it alone, and nothing before it combines with it. A text of such characters alone is in
/// form C, and between two of them it can be cut.
std::vector<bool> find_stable() {
  std::vector<bool> stable(kCodePoints, true);
  for (uint32_t c = kFirstUnstable; c < kCodePoints; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    if (utf8proc_get_property(int32_t(c))->combining_class != 0) stable[c] = false;
  }
  for (uint32_t c = 0xc0; c < kCodePoints; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    int32_t parts[8];
    const auto n = utf8proc_decompose_char(int32_t(c), parts, 8, UTF8PROC_DECOMPOSE, nullptr);
    ENSURE(n >= 1 && n <= 8, "U+{:04X} has {} parts", c, n);
    if (n == 1 && uint32_t(parts[0]) == c) continue;
    for (int i = 1; i < n; ++i) stable[uint32_t(parts[i])] = false;
    if (c >= 0xac00 && c < 0xd7a4) continue;  // syllables of Hangul come back
    std::string character, composed;
    append_utf8(character, c);
    append_normalized(character, composed);
    if (composed != character) stable[c] = false;
  }
  return stable;
}

const std::vector<bool>& stable_characters() {
  static const std::vector<bool> stable = find_stable();
  return stable;
}

}  // namespace

std::string_view normalize_c(std::string_view text, std::string& buffer) {
  const std::vector<bool>& stable = stable_characters();
  buffer.clear();
  size_t done = 0;         // text before is in the buffer, if anything is
  size_t last_stable = 0;  // the character before `at`, if it is valid and stable
  for (size_t at = 0; at < text.size();) {
    if (uint8_t(text[at]) < 0xcc) {  // below U+0300, or broken
      last_stable = at++;
      while (at < text.size() && (uint8_t(text[at]) & 0xc0) == 0x80) ++at;
      continue;
    }
    const CodePoint c = code_point_at(text.substr(at));
    if (stable[c.value]) {
      last_stable = at;
      at += c.length;
      continue;
    }
    size_t end = at + c.length;
    while (end < text.size()) {
      const CodePoint next = code_point_at(text.substr(end));
      if (stable[next.value]) break;
      end += next.length;
    }
    // A broken byte before the run is not handed over.
    const size_t begin = character_length(text.substr(last_stable)) == at - last_stable ? last_stable : at;
    buffer.append(text, done, begin - done);
    append_normalized(text.substr(begin, end - begin), buffer);
    done = at = end;
    last_stable = end;
  }
  if (done == 0) return text;
  buffer.append(text, done);
  return buffer;
}

}  // namespace trainctl::data
