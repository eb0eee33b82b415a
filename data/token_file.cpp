#include "data/token_file.h"

#include <algorithm>
#include <limits>

#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

template <typename T>
int32_t narrow(T value) {
  if constexpr (sizeof(T) == 8)
    return value < 0 || value > std::numeric_limits<int32_t>::max() ? -1 : int32_t(value);
  else
    return int32_t(value);  // a u32 beyond int32 becomes negative, which every reader refuses
}

template <typename T>
void convert(const std::byte* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = narrow(value);
  }
}

void convert(Element element, const std::byte* from, std::span<int32_t> out) {
  switch (element) {
    case Element::u8: return convert<uint8_t>(from, out);
    case Element::i8: return convert<int8_t>(from, out);
    case Element::i16: return convert<int16_t>(from, out);
    case Element::u16: return convert<uint16_t>(from, out);
    case Element::i32: return convert<int32_t>(from, out);
    case Element::u32: return convert<uint32_t>(from, out);
    case Element::i64: return convert<int64_t>(from, out);
  }
}

/// Index of the segment that holds token `offset`.
size_t segment_of(const std::vector<TokenFile::Segment>& segments, uint64_t offset) {
  const auto after = std::upper_bound(segments.begin(), segments.end(), offset,
                                      [](uint64_t o, const TokenFile::Segment& s) { return o < s.first_token; });
  return size_t(after - segments.begin()) - 1;
}

}  // namespace

int size_of(Element element) {
  switch (element) {
    case Element::u8:
    case Element::i8: return 1;
    case Element::i16:
    case Element::u16: return 2;
    case Element::i32:
    case Element::u32: return 4;
    case Element::i64: return 8;
  }
  return 0;
}

const char* name_of(Element element) {
  switch (element) {
    case Element::u8: return "u8";
    case Element::i8: return "i8";
    case Element::i16: return "i16";
    case Element::u16: return "u16";
    case Element::i32: return "i32";
    case Element::u32: return "u32";
    case Element::i64: return "i64";
  }
  return "?";
}

void TokenFile::read(uint64_t offset, std::span<int32_t> out) const {
  ENSURE(offset <= token_count && out.size() <= token_count - offset, "{}: tokens [{}, +{}) of {}", path(), offset,
         out.size(), token_count);
  while (!out.empty()) {
    const size_t s = segment_of(segments, offset);
    const uint64_t end = s + 1 < segments.size() ? segments[s + 1].first_token : token_count;
    const size_t n = size_t(std::min<uint64_t>(out.size(), end - offset));
    convert(element, tokens_map.bytes().data() + byte_of(offset), out.first(n));
    out = out.subspan(n);
    offset += n;
  }
}

uint64_t TokenFile::byte_of(uint64_t offset) const {
  const Segment& s = segments[segment_of(segments, offset)];
  return s.byte_offset + (offset - s.first_token) * uint64_t(size_of(element));
}

int64_t TokenFile::value_at(uint64_t offset) const {
  const uint64_t at = byte_of(offset);
  const auto bytes = tokens_map.bytes();
  switch (element) {
    case Element::i64: return load<int64_t>(bytes, at);
    case Element::u32: return load<uint32_t>(bytes, at);
    default: break;
  }
  int32_t value = 0;
  convert(element, bytes.data() + at, {&value, 1});
  return value;
}

}  // namespace trainctl::data
