// Hashes: XXH3-64 for the integrity and identity of data, SHA-256 for checkpoint manifests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

uint64_t xxh3(std::span<const std::byte> data, uint64_t seed = 0);
uint64_t xxh3(std::string_view text, uint64_t seed = 0);

/// Streaming XXH3-64; the digest equals xxh3() of the concatenation.
class Xxh3Stream {
 public:
  explicit Xxh3Stream(uint64_t seed = 0);
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;
  void update(std::span<const std::byte> data);
  uint64_t digest() const;

 private:
  void* state_;
};

/// Lower-case hex of SHA-256, 64 characters.
std::string sha256_hex(std::string_view text);

/// SHA-256 of a text that comes in pieces.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void update(std::string_view piece);
  /// sha256_hex() of all pieces together. Call it once, at the end.
  std::string hex();

 private:
  void* context_;
};
/// 16 lower-case hex digits.
std::string hex64(uint64_t value);

}  // namespace trainctl
