// TokenFile: one token file of any supported format, checked and mapped. The reader of each format makes one.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/loss_file.h"
#include "data/mapped_file.h"

namespace trainctl::data {

/// The type of a stored token, little-endian. Tokens are loaded with memcpy, because they may not be aligned.
enum class Element { u8, i8, i16, u16, i32, u32, i64 };
int size_of(Element element);
const char* name_of(Element element);

/// Loads a little-endian value at byte `offset` of `bytes`. The caller has checked the bounds.
template <typename T>
T load(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Thread-safe after construction.
class TokenFile {
 public:
  /// Consecutive tokens that are consecutive in the file.
  struct Segment {
    uint64_t first_token;
    uint64_t byte_offset;
  };
  MappedFile tokens_map;               ///< the file with the tokens
  std::optional<MappedFile> index_map; ///< Megatron: the .idx
  Element element = Element::u16;
  uint64_t token_count = 0;
  uint64_t document_count = 0;         ///< 0: unknown
  /// Ascending by first_token; several only if sequences are out of order.
  std::vector<Segment> segments;
  /// Megatron: the first token of every kDocumentsPerMark-th document.
  std::vector<uint64_t> document_marks;
  std::optional<LossFile> loss;  ///< nullopt: each token counts once

  const std::string& path() const { return tokens_map.path(); }
  /// Reads tokens [offset, offset + out.size()), which must exist. An id that does not fit int32 becomes
  /// negative.
  void read(uint64_t offset, std::span<int32_t> out) const;
  /// The id of token `offset` as stored, for messages.
  int64_t value_at(uint64_t offset) const;
  /// The byte in the file at which token `offset` is stored.
  uint64_t byte_of(uint64_t offset) const;
};

/// Opens `prefix`.idx and `prefix`.bin of Megatron-LM. Checks the consistency of the whole index, and the
/// size of the .bin, in one pass over the index. Error(kData).
TokenFile open_megatron(const std::string& prefix, const std::function<void(uint64_t bytes)>& on_checked = {});
/// The lengths, in tokens, of at most `limit` documents of a file from open_megatron, from document `first`
/// on.
std::vector<uint64_t> document_lengths(const TokenFile& file, uint64_t limit, uint64_t first = 0);
/// Between two marks the lengths in the index are added up: a mark costs memory, a document between marks
/// time.
inline constexpr uint64_t kDocumentsPerMark = 256;
/// Calls each(token) for the tokens of [begin, end) with which a document of a file from open_megatron
/// begins, ascending. Documents without tokens repeat the token of the next one.
void for_each_document_begin(const TokenFile& file, uint64_t begin, uint64_t end,
                             const std::function<void(uint64_t token)>& each);
/// Opens an llm.c shard. Error(kData).
TokenFile open_llmc(const std::string& path);
/// Opens a file of tokens without a header (nanoGPT). `dtype`: u16, u32 or i32. Error(kData).
TokenFile open_raw(const std::string& path, DType dtype);

inline constexpr int32_t kLlmcMagicU16 = 20240520, kLlmcMagicU32 = 20240801, kLlmcMagicEval = 20240522;
inline constexpr uint64_t kLlmcHeaderBytes = 1024;
inline constexpr uint64_t kMegatronHeaderBytes = 34;
inline constexpr unsigned char kMegatronMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

}  // namespace trainctl::data
