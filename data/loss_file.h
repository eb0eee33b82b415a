// The loss file NAME.loss next to a token file: how much each of its tokens counts as a target.
//
//   0   8 bytes  "TOKLOSS1"      16  u64  XXH3-64 of the weights     25  7 bytes of 0
//   8   u64      N, tokens       24  u8   the largest weight         32  u8[N] weights; 0: no loss
//
// Numbers are little-endian. A token of a file without one has the weight 1.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "data/mapped_file.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

inline constexpr uint64_t kLossHeaderBytes = 32;

struct LossHeader {
  uint64_t tokens = 0;
  uint64_t hash = 0;    ///< XXH3-64 of the weights
  uint8_t largest = 0;  ///< of the weights
};
/// The bytes of a header.
std::string loss_header(const LossHeader& header);

/// PREFIX.loss of PREFIX.bin, PREFIX.idx or PREFIX; NAME.loss of another file NAME.
std::string loss_path(const std::string& token_path);
/// The header of the loss file of a token file; nullopt if there is none. Error(kData): it is no loss file,
/// or truncated.
std::optional<LossHeader> read_loss_header(FileSystem& fs, const std::string& token_path);

/// A loss file that is mapped. Thread-safe after construction.
struct LossFile {
  MappedFile map;
  LossHeader header;
  std::span<const uint8_t> weights() const {
    return {reinterpret_cast<const uint8_t*>(map.bytes().data()) + kLossHeaderBytes, size_t(header.tokens)};
  }
  /// Error(kData), one sentence: the weights are not those that the header describes. Reads all of them.
  void verify() const;
};
/// The loss file of a token file with so many tokens; nullopt if there is none. Error(kData), one sentence:
/// it is no loss file, is truncated, or has another number of tokens.
std::optional<LossFile> open_loss(FileSystem& fs, const std::string& token_path, uint64_t tokens);

}  // namespace trainctl::data
