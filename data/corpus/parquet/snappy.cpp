#include <cstdint>
#include <cstring>

#include "data/corpus/parquet/unpack.h"

namespace trainctl::data::parquet {
namespace {

/// A little-endian number of `n` <= 4 bytes.
uint32_t little_endian(const uint8_t* p, size_t n) {
  uint32_t value = 0;
  for (size_t i = 0; i < n; ++i) value |= uint32_t(p[i]) << (8 * i);
  return value;
}

/// Copies `length` bytes from `distance` bytes before `to`; a copy may overlap what it writes.
void copy_back(char* to, size_t distance, size_t length) {
  const char* const from = to - distance;
  if (distance >= length) {
    std::memcpy(to, from, length);
    return;
  }
  for (size_t i = 0; i < length; ++i) to[i] = from[i];
}

}  // namespace

bool unpack_snappy(std::string_view packed, std::string& out) {
  const auto* in = reinterpret_cast<const uint8_t*>(packed.data());
  const uint8_t* const end = in + packed.size();
  uint64_t announced = 0;
  for (int shift = 0;; shift += 7) {
    if (in == end || shift > 28) return false;
    announced |= uint64_t(*in & 0x7f) << shift;
    if (*in++ < 0x80) break;
  }
  if (announced != out.size()) return false;
  size_t done = 0;
  while (in < end) {
    const uint8_t tag = *in++;
    const size_t kind = tag & 3, left = size_t(end - in);
    if (kind == 0) {  // a literal: its length - 1 in the tag, or in 1 to 4 bytes that follow
      size_t length = size_t(tag >> 2) + 1;
      if (length > 60) {
        const size_t n = length - 60;
        if (left < n) return false;
        length = size_t(little_endian(in, n)) + 1;
        in += n;
      }
      if (length > size_t(end - in) || length > out.size() - done) return false;
      std::memcpy(out.data() + done, in, length);
      in += length;
      done += length;
      continue;
    }
    const size_t offset_bytes = kind == 3 ? 4 : kind;
    if (left < offset_bytes) return false;
    size_t length = size_t(tag >> 2) + 1, distance = little_endian(in, offset_bytes);
    if (kind == 1) {
      length = size_t(tag >> 2 & 7) + 4;
      distance |= size_t(tag >> 5) << 8;
    }
    in += offset_bytes;
    if (distance == 0 || distance > done || length > out.size() - done) return false;
    copy_back(out.data() + done, distance, length);
    done += length;
  }
  return done == out.size();
}

}  // namespace trainctl::data::parquet
