#include "data/normalize.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "data/character_classes.h"
#include "data/utf8.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr uint32_t kCodePoints = 0x110000;
// Marks and compositions that are younger than the tables of Hugging Face's tokenizers 0.23, which leave
// them alone, and so does this file: what counts are the ids. test/peers/tokenizers_check.py compares both.
// clang-format off
constexpr CodePoints kYounger[] = {
    {0x7fd, 0x7fd}, {0x897, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c},
    {0xeba, 0xeba}, {0x1715, 0x1715}, {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c},
    {0x105c9, 0x105c9}, {0x105d2, 0x105d2}, {0x105da, 0x105da}, {0x105e4, 0x105e4}, {0x10d24, 0x10d27},
    {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11382, 0x11385}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e},
    {0x11390, 0x11391}, {0x113b8, 0x113b8}, {0x113bb, 0x113bb}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5},
    {0x113c7, 0x113c9}, {0x113ce, 0x113d0}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x1611e, 0x16129}, {0x1612f, 0x1612f}, {0x16d63, 0x16d63},
    {0x16d67, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
};
// clang-format on
constexpr uint32_t kFirstUnstable = 0x300;  // no smaller character combines with those before it or changes

void append_normalized(std::string_view text, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), utf8proc_ssize_t(text.size()),
                   &mapped, utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owned(mapped, std::free);
  ENSURE(n >= 0, "{}: {} bytes", utf8proc_errmsg(n), text.size());
  out.append(reinterpret_cast<const char*>(mapped), size_t(n));
}

/// For each character: form C leaves it alone, and nothing before it combines with it. A text of such
/// characters alone is in form C, and between two of them it can be cut.
struct StableCharacters {
  std::vector<bool> stable = std::vector<bool>(kCodePoints, true);
  std::vector<bool> younger = std::vector<bool>(kCodePoints, false);  // stable, and never handed over
};

StableCharacters find_stable() {
  StableCharacters result;
  std::vector<bool>& stable = result.stable;
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
  for (const auto [first, last] : kYounger)
    for (uint32_t c = first; c <= last; ++c) stable[c] = result.younger[c] = true;
  return result;
}

const StableCharacters& stable_characters() {
  static const StableCharacters characters = find_stable();
  return characters;
}

}  // namespace

std::string_view normalize_c(std::string_view text, std::string& buffer) {
  const auto& [stable, younger] = stable_characters();
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
    const std::string_view before = text.substr(last_stable, at - last_stable);
    const bool combines =
        !before.empty() && character_length(before) == before.size() && !younger[code_point_at(before).value];
    const size_t begin = combines ? last_stable : at;
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
