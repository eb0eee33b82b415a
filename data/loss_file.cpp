#include "data/loss_file.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::data {
namespace {

constexpr char kLossMagic[] = "TOKLOSS1";
constexpr size_t kLossMagicBytes = sizeof kLossMagic - 1;

/// `bytes`: the beginning of a file of so many bytes.
LossHeader parse_loss_header(std::span<const std::byte> bytes, uint64_t file_bytes, const std::string& path) {
  if (bytes.size() < kLossHeaderBytes || std::memcmp(bytes.data(), kLossMagic, kLossMagicBytes) != 0)
    throw Error(ErrorCode::kData,
                fmt::format("{} does not begin with {} and is no loss file; move it away, or set data.loss = "
                            "\"all\" to go without",
                            path, kLossMagic));
  LossHeader header;
  std::memcpy(&header.tokens, bytes.data() + 8, 8);
  std::memcpy(&header.hash, bytes.data() + 16, 8);
  std::memcpy(&header.largest, bytes.data() + 24, 1);
  if (header.tokens > file_bytes || file_bytes != kLossHeaderBytes + header.tokens)
    throw Error(ErrorCode::kData,
                fmt::format("{} has {} bytes, but its header announces {} weights of a byte behind {}; it is "
                            "truncated or corrupt",
                            path, file_bytes, header.tokens, kLossHeaderBytes));
  return header;
}

bool is_there(FileSystem& fs, const std::string& path) { return fs.exists(path) && !fs.is_directory(path); }

}  // namespace

std::string loss_header(const LossHeader& header) {
  std::string bytes(kLossHeaderBytes, '\0');
  std::memcpy(bytes.data(), kLossMagic, kLossMagicBytes);
  std::memcpy(bytes.data() + 8, &header.tokens, 8);
  std::memcpy(bytes.data() + 16, &header.hash, 8);
  std::memcpy(bytes.data() + 24, &header.largest, 1);
  return bytes;
}

std::string loss_path(const std::string& token_path) {
  const bool has_extension = token_path.ends_with(".idx") || token_path.ends_with(".bin");
  return (has_extension ? token_path.substr(0, token_path.size() - 4) : token_path) + ".loss";
}

std::optional<LossHeader> read_loss_header(FileSystem& fs, const std::string& token_path) {
  const std::string path = loss_path(token_path);
  if (!is_there(fs, path)) return std::nullopt;
  const auto file = fs.open_read(path);
  std::vector<std::byte> bytes(size_t(std::min<uint64_t>(file->size(), kLossHeaderBytes)));
  file->read_at(0, bytes);
  return parse_loss_header(bytes, file->size(), path);
}

std::optional<LossFile> open_loss(FileSystem& fs, const std::string& token_path, uint64_t tokens) {
  const std::string path = loss_path(token_path);
  if (!is_there(fs, path)) return std::nullopt;
  LossFile loss{.map = MappedFile(path), .header = {}};
  loss.header = parse_loss_header(loss.map.bytes(), loss.map.size(), path);
  if (loss.header.tokens != tokens)
    throw Error(ErrorCode::kData,
                fmt::format("{} has weights for {} tokens, but {} has {}; the two do not belong together",
                            path, loss.header.tokens, token_path, tokens));
  return loss;
}

void LossFile::verify() const {
  const auto all = weights();
  Xxh3Stream hash;
  hash.update(std::as_bytes(all));
  uint8_t largest = 0;
  for (const uint8_t weight : all) largest = std::max(largest, weight);
  if (hash.digest() != header.hash || largest != header.largest)
    throw Error(
        ErrorCode::kData,
        fmt::format("{} is corrupt: its weights have the hash {} and are at most {}, its header says {} "
                    "and {}; make it again",
                    map.path(), hex64(hash.digest()), largest, hex64(header.hash), header.largest));
}

}  // namespace trainctl::data
