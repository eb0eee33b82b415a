#include "runtime/machine/pmix/pmix_log.h"

#include <cstddef>
#include <cstdint>

namespace trainctl {
namespace {

bool printable(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte >= 0x20 && byte != 0x7f) || c == '\n' || c == '\t';
}

/// The length of a string that begins at `at`, if that is what lies before it.
uint32_t length_before(std::string_view buffer, size_t at) {
  if (at < 4) return 0;
  uint32_t length = 0;
  for (size_t i = at - 4; i < at; ++i) length = length << 8 | static_cast<unsigned char>(buffer[i]);
  return length;
}

}  // namespace

std::string longest_text(std::string_view buffer) {
  std::string_view longest;
  for (size_t begin = 0; begin < buffer.size();) {
    size_t end = begin;
    while (end < buffer.size() && printable(buffer[end])) ++end;
    // The last bytes of a length may be printable.
    size_t text = begin;
    for (size_t skipped = 1; skipped <= 4 && begin + skipped < end; ++skipped)
      if (length_before(buffer, begin + skipped) == end - begin - skipped + 1) text = begin + skipped;
    if (end - text > longest.size()) longest = buffer.substr(text, end - text);
    begin = end + 1;
  }
  return std::string(longest);
}

}  // namespace trainctl
