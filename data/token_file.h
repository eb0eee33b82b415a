// One token file of any supported format, checked and mapped: the readers of each format produce this.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/mapped_file.h"

namespace trainctl::data {

/// How a token is stored. All little-endian; loads go through memcpy because nothing is aligned.
enum class Element { u8, i8, i16, u16, i32, u32, i64 };
int size_of(Element element);
const char* name_of(Element element);

/// A little-endian value at byte `offset` of `bytes`; the caller has checked the bounds.
template <typename T>
T load(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Thread-safe after construction.
class TokenFile {
 public:
  /// A run of tokens that lie back to back in the file.
  struct Segment {
    uint64_t first_token;
    uint64_t byte_offset;
  };
  MappedFile tokens_map;               ///< the file with the tokens
  std::optional<MappedFile> index_map; ///< Megatron: the .idx
  Element element = Element::u16;
  uint64_t token_count = 0;
  uint64_t document_count = 0;         ///< 0 where unknown
  std::vector<Segment> segments;       ///< ascending by first_token; one unless sequences are out of order

  const std::string& path() const { return tokens_map.path(); }
  /// Tokens [offset, offset + out.size()); in range. An id that does not fit int32 comes out negative.
  void read(uint64_t offset, std::span<int32_t> out) const;
  /// The id as stored, for messages.
  int64_t value_at(uint64_t offset) const;
  /// Where token `offset` is stored.
  uint64_t byte_of(uint64_t offset) const;
};

/// `prefix`.idx and `prefix`.bin of Megatron-LM. Checks all of the index against itself and the size of the .bin: one
/// pass over the index. Error(kData).
TokenFile open_megatron(const std::string& prefix, const std::function<void(uint64_t bytes)>& on_checked = {});
/// Lengths in tokens of the first `limit` documents of a file from open_megatron.
std::vector<uint64_t> document_lengths(const TokenFile& file, uint64_t limit);
/// An llm.c shard. Error(kData).
TokenFile open_llmc(const std::string& path);
/// Tokens without a header (nanoGPT). `dtype`: u16, u32 or i32. Error(kData).
TokenFile open_raw(const std::string& path, DType dtype);

inline constexpr int32_t kLlmcMagicU16 = 20240520, kLlmcMagicU32 = 20240801, kLlmcMagicEval = 20240522;
inline constexpr uint64_t kLlmcHeaderBytes = 1024;
inline constexpr uint64_t kMegatronHeaderBytes = 34;
inline constexpr unsigned char kMegatronMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

}  // namespace trainctl::data
