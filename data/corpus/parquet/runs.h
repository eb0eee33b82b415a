// RunReader: small numbers packed by Parquet's hybrid of run lengths and bits, as levels and as indices of a
// dictionary.
#pragma once
#include <cstdint>
#include <string_view>

namespace trainctl::data::parquet {

/// Reads one number after the other. Source: "Run Length Encoding / Bit-Packing Hybrid" in Encodings.md of
/// Apache Parquet. Outlived by the bytes.
class RunReader {
 public:
  RunReader() = default;
  /// `width`: bits of each number, at most 32.
  RunReader(std::string_view bytes, int width) : bytes_(bytes), width_(width) {}

  /// False where the bytes end.
  bool next(uint32_t& value) {
    while (left_ == 0)
      if (!next_run()) return false;
    if (!is_packed_) {
      --left_;
      value = repeated_;
      return true;
    }
    if (bit_ + uint64_t(width_) > 8 * uint64_t(bytes_.size())) return false;
    --left_;
    value = bits_at(bit_);
    bit_ += uint64_t(width_);
    if (left_ == 0) bytes_.remove_prefix(size_t((bit_ + 7) / 8));
    return true;
  }

 private:
  bool next_run() {
    uint64_t head = 0;
    for (int shift = 0;; shift += 7) {
      if (bytes_.empty() || shift > 28) return false;
      const auto b = uint8_t(bytes_.front());
      bytes_.remove_prefix(1);
      head |= uint64_t(b & 0x7f) << shift;
      if (b < 0x80) break;
    }
    is_packed_ = head & 1;
    bit_ = 0;
    if (is_packed_) {
      left_ = (head >> 1) * 8;
      return true;
    }
    left_ = head >> 1;
    const size_t n = size_t(width_ + 7) / 8;
    if (bytes_.size() < n) return false;
    repeated_ = 0;
    for (size_t i = 0; i < n; ++i) repeated_ |= uint32_t(uint8_t(bytes_[i])) << (8 * i);
    bytes_.remove_prefix(n);
    return true;
  }
  /// The number whose lowest bit is bit `at` of the bytes.
  uint32_t bits_at(uint64_t at) const {
    uint64_t word = 0;
    const size_t first = size_t(at / 8), last = size_t((at + uint64_t(width_) + 7) / 8);
    for (size_t i = first; i < last; ++i) word |= uint64_t(uint8_t(bytes_[i])) << (8 * (i - first));
    return uint32_t(word >> (at % 8) & ((uint64_t(1) << width_) - 1));
  }

  std::string_view bytes_;  // the present run, if it is packed, and what follows
  int width_ = 0;
  bool is_packed_ = false;
  uint64_t left_ = 0, bit_ = 0;
  uint32_t repeated_ = 0;
};

}  // namespace trainctl::data::parquet
