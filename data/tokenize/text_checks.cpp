#include "data/tokenize/text_checks.h"

#include <algorithm>

#include "data/corpus/json_line.h"
#include "data/utf8.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl::data {
namespace {

/// Counts the bytes of `text` that belong to no character, the first of which is at `at`.
uint64_t count_broken(std::string_view text, size_t& at) {
  uint64_t broken = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t n = character_length(text.substr(i));
    if (n == 0 && broken++ == 0) at = i;
    i += std::max<size_t>(n, 1);
  }
  return broken;
}

}  // namespace

void TextFaults::add(const TextFaults& later) {
  if (not_utf8 == 0) first_not_utf8 = later.first_not_utf8;
  if (nul == 0) first_nul = later.first_nul;
  not_utf8 += later.not_utf8;
  nul += later.nul;
  bytes += later.bytes;
  utf16 = utf16 || later.utf16;
}

TextFaults text_faults(const Block& block) {
  TextFaults faults;
  if (block.kind == Block::Kind::json_lines) return faults;
  const bool is_rows = block.kind == Block::Kind::rows;
  for (size_t i = 0; i < block.texts.size(); ++i) {
    const Block::Text& text = block.texts[i];
    const auto bytes = std::string_view(block.bytes).substr(text.begin, text.end - text.begin);
    const auto place_of = [&](size_t byte) { return block.begin.offset + (is_rows ? i : text.begin + byte); };
    TextFaults found{.bytes = bytes.size()};
    const auto nul = std::count(bytes.begin(), bytes.end(), '\0');
    if (nul > 0) {
      found.nul = uint64_t(nul);
      found.first_nul = place_of(bytes.find('\0'));
    }
    if (!is_utf8(bytes)) {
      size_t at = 0;
      found.not_utf8 = count_broken(bytes, at);
      found.first_not_utf8 = place_of(at);
    }
    found.utf16 =
        !is_rows && place_of(0) == 0 && (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff"));
    faults.add(found);
  }
  return faults;
}

std::string fault_text(const TextFaults& faults, bool of_rows) {
  const auto place = [&](uint64_t first) {
    return of_rows ? fmt::format("the first in row {}", first + 1)
                   : fmt::format("the first is byte {}", first);
  };
  if (faults.utf16) return "is UTF-16 (it begins with its byte order mark); convert it to UTF-8";
  constexpr uint64_t kManyNuls = 4;  // every fourth byte: English in UTF-16 has every second
  if (faults.nul > 0) {
    const bool is_utf16 = faults.nul > faults.bytes / kManyNuls && faults.not_utf8 < faults.nul;
    return fmt::format("{} (bytes that are 0: {}, {}); {}", is_utf16 ? "is UTF-16 or UTF-32" : "is binary",
                       faults.nul, place(faults.first_nul),
                       is_utf16 ? "convert it to UTF-8" : "leave it out unless it is text");
  }
  if (faults.not_utf8 == 0) return "";
  return fmt::format(
      "is not UTF-8 (bytes that belong to no character: {}, {}); convert it if it is Latin-1 or the like",
      faults.not_utf8, place(faults.first_not_utf8));
}

}  // namespace trainctl::data
