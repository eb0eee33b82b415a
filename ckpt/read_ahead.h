// Reading ahead: the disk has work while a core hashes and copies what it has read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace trainctl::ckpt {

/// Calls read(0), read(1).. in a thread of its own, and use(i) in this one once read(i) has returned. At most
/// `ahead` of what is read is not used yet. Ends with the first error of either, which it throws.
void read_ahead(size_t count, size_t ahead, const std::function<void(size_t)>& read,
                const std::function<void(size_t)>& use);

struct FileRange {
  uint64_t offset = 0, bytes = 0;
  uint64_t end() const { return offset + bytes; }
  bool operator==(const FileRange&) const = default;
};
/// What to read of a file of `file_bytes` bytes to get `ranges`, which are in order and do not overlap: whole
/// pages, except at the end of the file, in blocks of at most `most` bytes (whole pages, too).
std::vector<FileRange> blocks_over(std::span<const FileRange> ranges, uint64_t file_bytes, uint64_t most);

}  // namespace trainctl::ckpt
